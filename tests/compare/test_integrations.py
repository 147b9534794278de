"""The pytest plugin, the GitHub Action and the GitLab template."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
import types
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from tests.support.captures import DATA, unpack

from stepscope import pytest_plugin
from stepscope.cli.gate import command
from stepscope.pytest_plugin import StepMeasurement, measure

ROOT = Path(__file__).parents[2]


# --- the plugin ----------------------------------------------------------------------------------


class Event:
    """A CUDA event whose clock is a counter that steps advance."""

    clock = 0.0

    def __init__(self, **_: object) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = Event.clock

    def elapsed_time(self, later: Event) -> float:
        return later.at - self.at


class Recorded:
    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def events(self) -> list[Any]:
        def event(name: str, device: str, **more: object) -> Any:
            return types.SimpleNamespace(name=name, device_type=f"DeviceType.{device}", **more)

        return [
            event("aten::mm", "CPU"),
            event("cudaLaunchKernel", "CPU"),
            event("cuLaunchKernelEx", "CPU"),
            event("cudaMemcpyAsync", "CPU"),
            event("gemm", "CUDA"),
            event("elementwise", "CUDA"),
            event("Memcpy HtoD (Pinned -> Device)", "CUDA"),
            event("ProfilerStep#1", "CUDA", is_user_annotation=True),
        ]


def fake_torch(*, available: bool = True) -> Any:
    cuda = types.SimpleNamespace(
        Event=Event, is_available=lambda: available, synchronize=lambda: None,
        reset_peak_memory_stats=lambda: None, max_memory_allocated=lambda: 1000,
    )  # fmt: skip
    activity = types.SimpleNamespace(CPU=0, CUDA=1)
    profiler = types.SimpleNamespace(profile=lambda **_: Recorded(), ProfilerActivity=activity)
    torch: Any = types.ModuleType("torch")
    torch.cuda, torch.profiler = cuda, profiler
    return torch


def test_a_step_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    calls = []

    def step() -> None:
        calls.append(1)
        Event.clock += 7.0 if len(calls) != 9 else 70.0  # one step is slow

    found = measure(step, steps=10, warmup=4)
    assert found.step_ms == 7
    assert max(found.steps_ms) == 70
    assert len(found.steps_ms) == 10
    assert len(calls) == 4 + 10 + 1
    assert (found.peak_memory_bytes, found.kernels_per_step, found.launches_per_step) == (
        1000,
        2,
        2,
    )
    found.check(step_ms=7, kernels_per_step=2)
    with pytest.raises(pytest.fail.Exception, match="step_ms is 7, over 6"):
        found.check(step_ms=6)
    with pytest.raises(ValueError, match="no figure"):
        found.check(foo=1)
    with pytest.raises(ValueError, match="3 steps"):
        measure(step, steps=2)
    assert isinstance(found, StepMeasurement)


def test_a_figure_that_was_not_measured_fails_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch()
    monkeypatch.setattr(Recorded, "events", lambda _: [])
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = measure(lambda: None, steps=3)
    assert found.kernels_per_step is None
    found.check(step_ms=1)
    with pytest.raises(pytest.fail.Exception, match="kernels_per_step was not measured"):
        found.check(kernels_per_step=10**9)


def test_the_plugin_loads_nothing_heavy() -> None:
    """Every pytest run of a project that has Stepscope installed loads it."""
    program = (
        "import sys, pytest; before = set(sys.modules); import stepscope.pytest_plugin; "
        "print(*(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded <= {"stepscope", "statistics", *sys.stdlib_module_names}
    assert [name for name in done.stdout.split() if name.startswith("stepscope.")] == [
        "stepscope.pytest_plugin"
    ]


@pytest.mark.parametrize("torch", [None, fake_torch(available=False)], ids=["none", "no device"])
def test_without_a_device_there_is_a_reason(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert pytest_plugin._no_device()


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "xdist"])
def test_a_test_without_a_gpu_is_skipped_loudly(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    (tmp_path / "test_it.py").write_text(
        "def test_speed(stepscope_step):\n    stepscope_step(lambda: None).check(step_ms=1)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "stepscope.pytest_plugin", "-p",
         "no:cacheprovider", *workers, "--rootdir", str(tmp_path), "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
    assert "NOT measured" in done.stdout
    assert "test_it.py::test_speed" in done.stdout


# --- templates -----------------------------------------------------------------------------------

OPTIONS = {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", ["github/action.yml", "gitlab/stepscope-gate.yml"])
def test_templates_use_options_that_exist(name: str) -> None:
    text = (ROOT / "integrations" / name).read_text(encoding="utf-8")
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--quiet"}
    assert used
    assert used <= OPTIONS
    assert "://" not in text
    assert "integrations/install.sh" in text or '"$GITHUB_ACTION_PATH/../install.sh"' in text


def test_stepscope_is_installed_from_the_checkout_with_its_lock(tmp_path: Path) -> None:
    """Run with a stand-in for Python, in folders with spaces: what pip would be asked for."""
    checkout = tmp_path / "a checkout"
    shutil.copytree(ROOT / "integrations", checkout / "integrations")
    (checkout / "requirements").mkdir()
    shutil.copy(ROOT / "requirements/dev.lock", checkout / "requirements")
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\nprintf "%s|" "$@" >>"{tmp_path}/log"; echo >>"{tmp_path}/log"\n'
        '[ "$2" = venv ] || exit 0\nmkdir -p "$3/bin"; cp "$0" "$3/bin/python"\n'
    )
    python.chmod(0o755)
    text = (checkout / "integrations/github/action.yml").read_text()
    (line,) = [line for line in text.splitlines() if "install.sh" in line]
    environment = os.environ | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_ACTION_PATH": str(checkout / "integrations/github"),
        "RUNNER_TEMP": str(tmp_path / "temp er"),
    }
    subprocess.run(["bash", "-ec", line.split("run: ")[1]], env=environment, check=True)
    folder = tmp_path / "temp er" / "stepscope-gate"
    made, *asked = (tmp_path / "log").read_text().splitlines()
    assert made == f"-m|venv|{folder}|"
    constraint = f"--constraint|{folder}/pinned.txt"
    assert [line.partition(constraint)[2] for line in asked] == [
        "|hatchling|editables|",
        f"|--no-build-isolation|{checkout}|",
    ]
    pinned = (folder / "pinned.txt").read_text().split()
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name in (re.split(r"[>=<]", one)[0] for one in (*dependencies, "hatchling", "editables")):
        assert [line for line in pinned if line.startswith(f"{name}==")], name


# Ways to say: get a package from an index.
INSTALLERS = (
    r"pip3? install|pipx (?:install|run)|uv (?:add|pip install|tool (?:install|run))"
    r"|uvx(?! --from (?:\.|WHEEL) )"
    r"|(?:conda|mamba|micromamba|pixi) (?:install|add|create)|poetry add|pdm add|rye add"
    r"|easy_install|--with|npx|brew install"
)
FROM_AN_INDEX = re.compile(
    rf"(?<![\w-])(?:{INSTALLERS})\b[^\n|;&`]*?(?<![\w./$@-])[\"']?stepscope(?:\[[\w,]*\])?(?![\w./-])"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pip install stepscope", True),
        ("python -m pip install --quiet 'stepscope[ncu]'", True),
        ("uvx stepscope demo", True),
        ("uvx --from stepscope stepscope", True),
        ("uvx --from . stepscope demo", False),
        ("uv run --with stepscope python", True),
        ("uv tool install stepscope", True),
        ("pip install --upgrade stepscope==1", True),
        ("`pip install .` installs the `stepscope` command", False),
        ("pip install ./third_party/stepscope", False),
        ('pip install "$STEPSCOPE_SOURCE"', False),
        ("pip install third_party/stepscope && stepscope demo", False),
        ("pip install ncu-report, then stepscope kernels", True),  # better twice than never
    ],
)
def test_the_search_for_installs(text: str, found: bool) -> None:
    assert bool(FROM_AN_INDEX.search(text)) == found


def test_no_file_tells_to_install_stepscope_from_an_index() -> None:
    """The name is not registered there: whoever registers it would be run."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip("needs a git checkout")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    answer = []
    for path in paths:
        if path == Path(__file__) or not path.is_file():
            continue
        data = path.read_bytes()
        if b"stepscope" in data and b"\0" not in data[:4096]:
            text = data.decode("utf-8", "replace")
            answer += [f"{path}: {match[0]}" for match in FROM_AN_INDEX.finditer(text)]
    assert answer == []
    assert len(paths) > 500


def action_script() -> str:
    text = (ROOT / "integrations/github/action.yml").read_text(encoding="utf-8")
    return "\n".join(line[8:] for line in text.split("run: |\n")[1].splitlines())


def template_script() -> str:
    """The commands of the template but for the one that installs Stepscope."""
    text = (ROOT / "integrations/gitlab/stepscope-gate.yml").read_text(encoding="utf-8")
    folded = text.split("- >-\n")[1].split("  artifacts:")[0]
    return " ".join(line.strip() for line in folded.splitlines())


def program(folder: Path, content: str) -> dict[str, str]:
    """An environment in which the ``stepscope`` that was installed is a script."""
    for name in ("stepscope-gate", ".stepscope-gate"):
        stand_in = folder / name / "bin" / "stepscope"
        stand_in.parent.mkdir(parents=True)
        stand_in.write_text(f"#!/bin/bash\n{content}\n")
        stand_in.chmod(stand_in.stat().st_mode | stat.S_IEXEC)
    return os.environ | {"RUNNER_TEMP": str(folder)}


def test_the_action_passes_its_inputs_untouched(tmp_path: Path) -> None:
    """The script of the action, run with a stand-in for stepscope that shows its arguments."""
    environment = program(tmp_path, 'printf "%s\\n" "$@"') | {
        "CAPTURES": "a b.sqlite\n$(touch evil)\n",
        "BASELINE": "base.json\n",
        "BUDGETS": "step_ms=25\nidle_share=0.1",
        "CONFIG": "",
        "JUNIT": "j.xml",
        "GITHUB_STEP_SUMMARY": "s.md",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", action_script()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        *shlex.split("gate --baseline base.json --budget step_ms=25 --budget idle_share=0.1"),
        *shlex.split("--github --junit j.xml --summary s.md --"),
        "a b.sqlite",
        "$(touch evil)",
    ]
    assert not (tmp_path / "evil").exists()


def test_the_template_passes_its_variables_untouched(tmp_path: Path) -> None:
    environment = program(tmp_path, 'printf "%s\\n" "$@"')
    for baseline, given in (("", []), ("b c.json", ["--baseline", "b c.json"])):
        variables = {"STEPSCOPE_CAPTURES": "$(touch evil) --x", "STEPSCOPE_BASELINE": baseline}
        done = subprocess.run(
            ["sh", "-e", "-c", template_script()],
            cwd=tmp_path, env=environment | variables, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines() == [
            "gate", *given, "--junit", "stepscope-junit.xml",
            "--gitlab", "gl-code-quality-report.json", "--", "$(touch evil) --x",
        ]  # fmt: skip
    assert not (tmp_path / "evil").exists()


def test_both_judge_real_captures(tmp_path: Path) -> None:
    """As a CI system runs them, on a healthy capture and on one that starves."""
    good, bad = (unpack(DATA / "nsys" / f"{n}.sqlite.xz") for n in ("cnn_small", "cnn_disk"))
    environment = program(tmp_path, f'exec {shlex.quote(sys.executable)} -m stepscope "$@"')
    environment["PYTHONPATH"] = str(ROOT / "src")
    shells = {"bash": action_script(), "sh": template_script()}
    for capture, code in ((good, 0), (bad, 1)):
        names = {"CAPTURES": str(capture), "BASELINE": str(good), "BUDGETS": "", "CONFIG": "",
                 "JUNIT": "stepscope-junit.xml", "GITHUB_STEP_SUMMARY": "summary.md"}  # fmt: skip
        names |= {"STEPSCOPE_CAPTURES": str(capture), "STEPSCOPE_BASELINE": str(good)}
        for shell, script in shells.items():
            done = subprocess.run(
                [shell, "-e", "-c", script],
                cwd=tmp_path, env=environment | names, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == code, done.stdout + done.stderr
            assert ("input_starvation" in done.stdout) == bool(code)
            root = ET.parse(tmp_path / "stepscope-junit.xml").getroot()
            assert root.attrib["failures"] == str(code)
            (tmp_path / "stepscope-junit.xml").unlink()
            assert ("::error " in done.stdout) == (code == 1 and shell == "bash")
        assert len(json.loads((tmp_path / "gl-code-quality-report.json").read_text())) == code
    assert (tmp_path / "summary.md").read_text().count("### ") == 2
