"""Plans: read from TOML and YAML, refused by field."""

import sys
from pathlib import Path

import pytest

from pie_p.errors import InputError
from pie_p.profiling.campaign import CampaignPlan
from pie_p.profiling.plans import load_plan, parse_budget


def test_plans_come_from_toml_and_bad_ones_are_refused_by_field(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('name = "one"\ngpu = "h200-sxm-141gb"\n[kernels]\nlinear = 3\n[procedure]\nenough_s = 2.0\n')
    plan = load_plan(path, CampaignPlan)
    assert (plan.kernels, plan.procedure.enough_s, plan.procedure.trials) == ({"linear": 3}, 2.0, 4)
    path.write_text('name = "one"\ngpu = "h200-sxm-141gb"\nkernel = 3\n[kernels]\nlinear = 3\n')
    with pytest.raises(InputError, match=r"plan.toml: kernel: Extra inputs are not permitted \(got '3'\)"):
        load_plan(path, CampaignPlan)
    path.write_text("name = ")
    with pytest.raises(InputError, match="is not TOML"):
        load_plan(path, CampaignPlan)
    with pytest.raises(InputError, match=r"cannot read the plan .*absent.toml: No such file"):
        load_plan(tmp_path / "absent.toml", CampaignPlan)


@pytest.mark.parametrize("text", ["", "8 minutes", "-3m", "0", "m"])
def test_a_time_box_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is no time box; write 90s, 8m or 1.5h"):
        parse_budget(text)


def test_a_plan_in_yaml_is_the_plan_in_toml(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    (tmp_path / "plan.toml").write_text('name = "one"\ngpu = "h200-sxm-141gb"\n[kernels]\nlinear = 3\n')
    (tmp_path / "plan.yaml").write_text("name: one\ngpu: h200-sxm-141gb\nkernels: {linear: 3}\n")
    assert load_plan(tmp_path / "plan.yaml", CampaignPlan) == load_plan(tmp_path / "plan.toml", CampaignPlan)
    (tmp_path / "plan.yaml").write_text("name: [one\n")
    with pytest.raises(InputError, match="not YAML: while parsing a flow sequence"):
        load_plan(tmp_path / "plan.yaml", CampaignPlan)
    (tmp_path / "plan.yml").write_text("- one\n")
    with pytest.raises(InputError, match="holds no fields; a plan has at least name and gpu"):
        load_plan(tmp_path / "plan.yml", CampaignPlan)


def test_yaml_without_pyyaml_is_one_line_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.yaml").write_text("name: one\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match="is YAML, and PyYAML is not installed: pip install pyyaml, or write the plan in TOML"):
        load_plan(tmp_path / "plan.yaml", CampaignPlan)
