"use strict";
// The operator tree: blocks as wide as their share of the energy, and the same as a list. Every block and line is a button.
(() => {
  const { tree, whole, words, communication } = JSON.parse(document.getElementById("data").textContent);
  const stage = document.getElementById("icicle");
  if (!tree || !stage) return;
  const trail = document.getElementById("trail"), told = document.getElementById("told"), list = document.getElementById("parts");
  const ROWS = 4, HEIGHT = 44, LEAST = 0.25; // levels shown; pixels; percent below which a block is not drawn

  const node = (name, parent) => ({ name, parent, own: 0, children: new Map(), sums: { compute: 0, communication: 0, wait: 0 } });
  const root = node("all", null);
  for (const [path, joules] of Object.entries(tree)) {
    let at = root;
    for (const part of path.split("/")) {
      if (!at.children.has(part)) at.children.set(part, node(part, at));
      at = at.children.get(part);
    }
    at.own += joules;
  }
  const kindOf = (at) => {
    for (let up = at; up; up = up.parent) if (up.name === "wait") return "wait";
    return communication.includes(at.name) ? "communication" : "compute";
  };
  const settle = (at) => {
    if (at.own && at.children.size) {
      const itself = node("itself", at);
      itself.own = at.own;
      at.own = 0;
      at.children.set("itself", itself);
    }
    if (!at.children.size) at.sums[kindOf(at)] += at.own;
    at.joules = at.own;
    at.sorted = [...at.children.values()];
    for (const child of at.sorted) {
      settle(child);
      at.joules += child.joules;
      for (const kind in at.sums) at.sums[kind] += child.sums[kind];
    }
    at.sorted.sort((a, b) => b.joules - a.joules);
  };
  settle(root);

  const figure = (joules) => {
    const size = Math.abs(joules);
    const [factor, prefix] = [[1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"]].find(([f]) => size >= f * 0.9995) || [1e-6, "µ"];
    return joules === 0 ? "0 J" : `${(joules / factor).toPrecision(3).replace(/e.*/, "")} ${prefix}J`;
  };
  const percent = (part) => part > 0 && part < 0.0005 ? "under 0.1 %" : `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)} %`;
  const label = (at) => (at === root ? whole : at.name.replace(/_/g, " "));
  const meaning = (at) => words[at.name] || "";
  const paint = (at) => {
    const total = Object.values(at.sums).reduce((sum, value) => sum + Math.max(value, 0), 0) || 1;
    let from = 0;
    const stops = Object.entries(at.sums).filter(([, value]) => value > 0).map(([kind, value]) => {
      const to = from + (100 * value) / total;
      const stop = `var(--${kind}) ${from.toFixed(2)}% ${to.toFixed(2)}%`;
      from = to;
      return stop;
    });
    return `linear-gradient(90deg, ${stops.join(", ") || "var(--line) 0 100%"})`;
  };
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text) element.textContent = text;
    return element;
  };

  const drawBlocks = (shown) => {
    stage.replaceChildren();
    let deepest = 0;
    const place = (at, left, width, level) => {
      if (level >= ROWS || width < LEAST) return;
      deepest = Math.max(deepest, level);
      const block = make(at.children.size ? "button" : "div", "block");
      block.style.cssText = `left:${left}%;width:${width}%;top:${level * HEIGHT}px`;
      block.title = `${label(at)}: ${figure(at.joules)}, ${percent(at.joules / root.joules)}`;
      block.append(make("span", "", label(at)), make("small", "", `${figure(at.joules)}`));
      const strip = make("i");
      strip.style.background = paint(at);
      block.append(strip);
      if (block.tagName === "BUTTON") {
        block.type = "button";
        block.setAttribute("aria-label", `${block.title}. ${meaning(at)}`);
        block.addEventListener("click", () => show(at === shown && at.parent ? at.parent : at, true));
      }
      stage.append(block);
      let x = left;
      for (const child of at.sorted) {
        if (child.joules <= 0) continue;
        const part = (width * child.joules) / at.joules;
        place(child, x, part, level + 1);
        x += part;
      }
    };
    place(shown, 0, 100, 0);
    stage.style.height = `${(deepest + 1) * HEIGHT}px`;
  };

  const drawList = (shown) => {
    list.replaceChildren();
    for (const child of shown.sorted) {
      const open = child.children.size > 0;
      const line = make(open ? "button" : "div", "part");
      if (open) {
        line.type = "button";
        line.addEventListener("click", () => show(child, true));
      }
      const names = make("span", "name");
      names.append(make("b", "", label(child)), make("span", "", meaning(child)));
      const bar = make("span", "mini");
      const fill = make("i");
      fill.style.cssText = `width:${Math.max(0, (100 * child.joules) / shown.joules).toFixed(2)}%;background:${paint(child)}`;
      bar.append(fill);
      const amount = make("span", "amount", `${figure(child.joules)} · ${percent(child.joules / root.joules)}`);
      amount.dataset.path = pathOf(child);
      amount.dataset.joules = child.joules;
      line.append(names, bar, amount);
      const item = make("li");
      item.append(line);
      list.append(item);
    }
  };

  const pathOf = (at) => (at.parent === root || at === root ? at.name : `${pathOf(at.parent)}/${at.name}`);
  const show = (shown, focus) => {
    const steps = [];
    for (let up = shown; up; up = up.parent) steps.unshift(up);
    trail.replaceChildren(...steps.map((step, index) => {
      const last = index === steps.length - 1;
      const button = make(last ? "span" : "button", "", label(step));
      if (last) button.setAttribute("aria-current", "true");
      else {
        button.type = "button";
        button.addEventListener("click", () => show(step, true));
      }
      return button;
    }));
    told.textContent = `${label(shown)}: ${figure(shown.joules)}, ${percent(shown.joules / root.joules)} of the GPU energy${meaning(shown) && ` (${meaning(shown)})`}`;
    drawBlocks(shown);
    drawList(shown);
    if (focus) (stage.querySelector("button") || trail.querySelector("button"))?.focus();
  };
  show(root, false);
})();
