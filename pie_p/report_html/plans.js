"use strict";
// Chooser, picture and table of a sweep: three views of one list of plans.
(() => {
  const { objective, fields, plans, names, front } = JSON.parse(document.getElementById("data").textContent);
  const table = document.getElementById("plans");
  if (!table) return;
  const at = Object.fromEntries(fields.map((name, index) => [name, index]));
  const value = (plan, name) => plans[plan][at[name]];
  const dots = new Map([...document.querySelectorAll(".dot")].map((dot) => [Number(dot.dataset.i), dot]));
  const PAGE = 25;

  const digits = (number) =>
    Math.abs(number) >= 1000 || number === 0
      ? number.toLocaleString("en-US", { maximumFractionDigits: 0 })
      : number.toLocaleString("en-US", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
  const scaled = (number, unit, factor = 1) => (number === null ? "–" : `${digits(number * factor)}${unit ? ` ${unit}` : ""}`);
  const columns = [
    ["plan", "plan", (plan) => names[plan]],
    ["energy_per_output_token_j", "energy per token", (plan) => scaled(value(plan, "energy_per_output_token_j"), "J")],
    ["energy_j", "energy per request", (plan) => scaled(value(plan, "energy_j"), "J")],
    ["latency_s", "whole answer", (plan) => scaled(value(plan, "latency_s"), "s")],
    ["tpot_s", "per token", (plan) => scaled(value(plan, "tpot_s"), "ms", 1e3)],
    ["ttft_s", "first token", (plan) => scaled(value(plan, "ttft_s"), "ms", 1e3)],
    ["tokens_per_s", "tokens/s", (plan) => scaled(value(plan, "tokens_per_s"), "")],
    ["tokens_per_s_per_gpu", "tokens/s and GPU", (plan) => scaled(value(plan, "tokens_per_s_per_gpu"), "")],
    ["avg_power_w", "power", (plan) => scaled(value(plan, "avg_power_w"), "W")],
    ["memory_share", "memory", (plan) => scaled(value(plan, "memory_share"), "%", 100)],
    ["gpus", "GPUs", (plan) => String(value(plan, "gpus"))],
  ].filter(([name]) => name === "plan" || plans.some((_, plan) => value(plan, name) !== null));
  const make = (tag, text, className) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };

  const card = (box, plan, lead) => {
    box.classList.remove("empty");
    const entries = make("dl");
    for (const [name, words, figure] of columns.slice(1)) {
      const pair = make("div"), figureOf = make("dd", figure(plan));
      figureOf.dataset.name = name;
      figureOf.dataset.value = value(plan, name);
      pair.append(make("dt", words), figureOf);
      entries.append(pair);
    }
    box.dataset.plan = plan;
    box.replaceChildren(make("h3", `${lead}${names[plan]}`), entries);
    const low = value(plan, "interval_low_j"), high = value(plan, "interval_high_j");
    if (low !== null) box.append(make("p", `90 % interval of the energy per request: ${digits(low)} to ${digits(high)} J`, "about"));
    for (const text of value(plan, "warnings")) box.append(make("p", `Be careful: ${text}`, "about"));
  };

  // What keeps the limits
  const inputs = [...document.querySelectorAll("form.limits input")];
  let within = plans.map((_, plan) => plan);
  const limits = () => {
    const given = {};
    for (const input of inputs) if (input.value !== "" && input.valueAsNumber >= 0) given[input.name] = input.valueAsNumber * Number(input.dataset.scale);
    return given;
  };
  const keeps = (plan, given) => Object.entries(given).every(([name, bound]) => {
    if (name === "margin") return true;
    const clear = name === "gpus" ? 1 : 1 + (given.margin || 0);
    return value(plan, name) !== null && value(plan, name) * clear <= bound;
  });
  const choice = document.getElementById("choice");
  const choose = () => {
    const given = limits();
    within = plans.map((_, plan) => plan).filter((plan) => keeps(plan, given));
    dots.forEach((dot, plan) => dot.classList.toggle("out", !keeps(plan, given)));
    if (!within.length) {
      choice.classList.add("empty");
      choice.removeAttribute("data-plan");
      choice.replaceChildren(make("h3", "No plan keeps these limits."), make("p", "Loosen one of them, or sweep more GPUs, degrees or batches.", "about"));
    } else {
      const better = (a, b) => value(a, objective) - value(b, objective) || value(a, "gpus") - value(b, "gpus") || value(a, "latency_s") - value(b, "latency_s");
      card(choice, within.reduce((best, plan) => (better(plan, best) < 0 ? plan : best)), "Least energy: ");
    }
    draw(true);
  };

  // The picture
  const point = document.getElementById("point");
  let chosen = null;
  const select = (plan) => {
    if (chosen !== null) dots.get(chosen)?.classList.remove("chosen");
    chosen = plan;
    dots.get(plan)?.classList.add("chosen");
    card(point, plan, front.includes(plan) ? "On the front: " : "");
    for (const row of table.tBodies[0].rows) row.classList.toggle("chosen", Number(row.dataset.i) === plan);
  };
  const picture = document.getElementById("picture");
  const reach = (plan) => { // Tab stops once, at the point that was left; the arrow keys go on from there
    for (const other of front) dots.get(other)?.setAttribute("tabindex", other === plan ? "0" : "-1");
  };
  const plotted = (event) => (event.target.classList?.contains("dot") ? Number(event.target.dataset.i) : null);
  for (const kind of ["pointerover", "focusin", "click"])
    picture.addEventListener(kind, (event) => {
      const plan = plotted(event);
      if (plan === null) return;
      select(plan);
      if (event.type === "focusin") reach(plan);
    });
  picture.addEventListener("keydown", (event) => {
    const plan = plotted(event);
    if (plan === null) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      select(plan);
    }
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = step && front[front.indexOf(plan) + step];
    if (next !== undefined) {
      event.preventDefault();
      dots.get(next)?.focus();
    }
  });

  // The table
  let sorted = objective, rising = true, shownRows = PAGE;
  const more = document.getElementById("more"), count = document.getElementById("count");
  const head = make("tr");
  for (const [name, words] of columns) {
    const cell = make("th"), button = make("button", words);
    cell.scope = "col";
    button.type = "button";
    button.addEventListener("click", () => {
      rising = sorted === name ? !rising : true;
      sorted = name;
      draw(true);
    });
    cell.dataset.name = name;
    cell.append(button);
    head.append(cell);
  }
  table.tHead.append(head);
  const compare = (a, b) => {
    const [x, y] = sorted === "plan" ? [names[a], names[b]] : [value(a, sorted), value(b, sorted)];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
    return rising ? order : -order;
  };
  function draw(fromStart) {
    if (fromStart) shownRows = PAGE;
    for (const cell of head.cells) {
      if (cell.dataset.name === sorted) cell.setAttribute("aria-sort", rising ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
    const rows = [...within].sort(compare).slice(0, shownRows).map((plan) => {
      const row = make("tr");
      row.dataset.i = plan;
      row.classList.toggle("chosen", plan === chosen);
      for (const [name, , figure] of columns) {
        const cell = make("td");
        if (name === "plan") {
          const button = make("button", figure(plan));
          button.type = "button";
          button.addEventListener("click", () => select(plan));
          cell.append(button);
        } else cell.textContent = figure(plan);
        row.append(cell);
      }
      return row;
    });
    table.tBodies[0].replaceChildren(...rows);
    count.textContent = `${Math.min(shownRows, within.length).toLocaleString("en-US")} of ${within.length.toLocaleString("en-US")} plans`;
    more.hidden = shownRows >= within.length;
  }
  more.addEventListener("click", () => {
    const last = table.tBodies[0].rows.length;
    shownRows += PAGE * 4;
    draw(false);
    table.tBodies[0].rows[last]?.querySelector("button").focus();
  });

  for (const input of inputs) input.addEventListener("input", choose);
  document.querySelector("form.limits").addEventListener("submit", (event) => event.preventDefault());
  choose();
  if (front.length) {
    select(front[front.length - 1]);
    reach(front[0]);
  }
})();
