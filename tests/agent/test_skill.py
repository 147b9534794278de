"""The skill: made from the registries, installed once, never over what is not ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.command import Stepscope, is_one_line
from tests.support.captures import DATA, unpack

from stepscope.agent.skill import NAME, homes, install, skill_files
from stepscope.api.terms import terms
from stepscope.cli.registry import commands
from stepscope.render.brief import Brief, BriefFinding, tokens
from stepscope.trace.errors import UsageError


def test_the_router_is_short_and_leads_to_its_references() -> None:
    files = skill_files()
    router = files["SKILL.md"]
    front = router.split("---\n")[1]
    assert re.search(rf"^name: {NAME}$", front, re.M)
    description = re.search(r"^description: (.+)$", front, re.M)
    assert description is not None
    assert len(description[1]) <= 1024
    assert tokens(router) <= 1000
    assert set(re.findall(r"\]\((references/\S+)\)", router)) == files.keys() - {"SKILL.md"}


def test_it_names_what_there_is() -> None:
    files = skill_files()
    text = "\n".join(files.values())
    for name in re.findall(r"`stepscope ([\w-]+)", text):
        assert name in commands()
    for term in terms():
        if term.kind in ("cause", "lever"):
            assert f"**{term.id}**" in files["references/causes.md"]
    fields = {*Brief.__struct_fields__, *BriefFinding.__struct_fields__}
    for field in re.findall(r"`(\w+_\w+)`", files["references/reading.md"]):
        assert field in fields


def test_installing_twice_changes_nothing(tmp_path: Path) -> None:
    first = install(tmp_path)
    assert {one.fate for one in first} == {"written"}
    assert {one.path.relative_to(tmp_path / NAME).as_posix() for one in first} == {*skill_files()}
    before = {one.path: one.path.read_bytes() for one in first}
    assert {one.fate for one in install(tmp_path)} == {"unchanged"}
    assert before == {one.path: one.path.read_bytes() for one in first}


def test_an_earlier_version_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = skill_files()
    monkeypatch.setattr(
        "stepscope.agent.skill.skill_files", lambda: current | {"SKILL.md": "as it was\n"}
    )
    install(tmp_path)
    monkeypatch.undo()
    assert [one.fate for one in install(tmp_path)].count("updated") == 1
    assert (tmp_path / NAME / "SKILL.md").read_text().startswith("---\nname: stepscope\n")


@pytest.mark.parametrize("kind", ["foreign", "changed", "link", "folder", "binary"])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, kind: str) -> None:
    target = tmp_path / NAME / "references" / "causes.md"
    target.parent.mkdir(parents=True)
    if kind == "foreign":
        target.write_text("my own notes\n")
    elif kind == "changed":
        install(tmp_path)
        target.write_text(target.read_text().replace("# Causes", "# My causes"))
        (tmp_path / NAME / "SKILL.md").unlink()
    elif kind == "link":
        target.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        target.mkdir()
    else:
        target.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="move it away"):
        install(tmp_path)
    assert not (tmp_path / NAME / "SKILL.md").exists()  # nothing is written at all
    assert not (tmp_path / "elsewhere").exists()


def test_it_goes_where_agents_look(tmp_path: Path) -> None:
    assert homes(tmp_path) == [tmp_path / ".agents/skills"]
    (tmp_path / ".claude").mkdir()
    assert homes(tmp_path) == [tmp_path / ".claude/skills"]
    (tmp_path / ".agents").mkdir()
    assert len(homes(tmp_path)) == 2


def test_commands(reader: Stepscope, tmp_path: Path) -> None:
    assert "## Stop" in reader("skill", "show").stdout
    assert "# Causes" in reader("skill", "show", "references/causes.md").stdout
    assert "it has SKILL.md" in refused(reader, "skill", "show", "nothing")
    assert "--path" in refused(reader, "skill", "install", "there")
    assert reader("skill", "install", "--path", tmp_path).stdout.count("written") == 4
    again = reader.json("skill", "install", "--path", tmp_path)["installed"]
    assert {one["fate"] for one in again} == {"unchanged"}
    assert reader.json("skill", "show")["file"] == "SKILL.md"
    capture = unpack(DATA / "nsys" / "cnn_disk.sqlite.xz")
    brief = reader.json("diagnose", capture, "--brief")
    figures = reader.json("explain", brief["verdict"], "--in", capture)
    assert figures["finding"]["cause"] == brief["verdict"] == "input_starvation"
    assert "SELECT" in reader("explain", brief["verdict"], "--in", capture).stdout
    assert "is no finding" in refused(reader, "explain", "straggler", "--in", capture)
    steps = reader.json("steps", capture, "--brief", "--limit", "2")
    assert len(steps["rows"]) == 2
    assert steps["rows_in_all"] == 10
    parts = [name for name in steps["columns"] if name.endswith("_ms") and name != "wall_ms"]
    for row in steps["rows"]:
        step = dict(zip(steps["columns"], row, strict=True))
        assert sum(step[part] for part in parts) == pytest.approx(step["wall_ms"], abs=0.005)


def refused(reader: Stepscope, *arguments: str | Path, **env: str) -> str:
    return is_one_line(reader(*arguments, expect=2, **env).stderr)
