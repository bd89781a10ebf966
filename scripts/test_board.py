"""Tests of the scoreboard's judgement and table: `python3 -m unittest discover -s scripts`."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import board


def figure(row="R8", what="kills", n=1000, bad=0, **more):
    return {"figure": row, "what": what, "n": n, "bad": bad, **more}


def measure(value, unit="s", better="less"):
    return {"value": value, "unit": unit, "better": better}


def result(suite="soak-kills", figures=(), tier="check", status="passed", commit="a1", **more):
    facts = {"kernel": "6.18", "date": "2026-01-02", "seconds": 12.0}
    return {"suite": suite, "tier": tier, "status": status, "commit": commit, **facts, "figures": list(figures), **more}


def reasons(*figures, before=(), **more):
    committed = {"soak-kills": result(figures=before)} if before else {}
    return board.reasons({"soak-kills": result(figures=figures, **more)}, committed)


class Parse(unittest.TestCase):
    def test_lines_of_one_name_are_one_figure(self):
        one = figure(seed=1, fired={"a": 2, "b": 0}, measures={"p99": measure(1), "kept": measure(9, "%", "more")})
        two = figure(
            n=500,
            bad=1,
            seed=2,
            fired={"a": 3, "b": 4, "c": 5},
            measures={"p99": measure(3), "kept": measure(8, "%", "more")},
        )
        found, problems = board.parse("\n".join(map(json.dumps, [one, figure("R9", "cuts"), two])))
        self.assertEqual([], problems)
        self.assertEqual([("R8", "kills"), ("R9", "cuts")], [board.name_of(f) for f in found])
        self.assertEqual((1500, 1, "1, 2"), (found[0]["n"], found[0]["bad"], found[0]["seed"]))
        self.assertEqual({"a": 5, "b": 0, "c": 5}, found[0]["fired"])
        self.assertEqual([3, 8], [m["value"] for m in found[0]["measures"].values()])

    def test_what_is_no_figure_is_said(self):
        lines = ["{", "[]", json.dumps(figure("R99")), json.dumps(figure(n="7")), '{"figure":"R8"}']
        found, problems = board.parse("\n".join(lines))
        self.assertEqual(([], 5), (found, len(problems)))
        self.assertEqual(["unit: x"], board.reasons({"unit": result("unit", problems=["x"])}, {}))


class Reasons(unittest.TestCase):
    def test_a_good_run_has_none(self):
        good = figure(fired={"in a fill": 7}, measures={"p99": measure(0.4)})
        self.assertEqual([], reasons(good))
        self.assertEqual([], reasons(good, before=[good]))

    def test_each_fault_is_one_line(self):
        for bad, says in [
            (figure(bad=2), "R8 kills: 2 bad of 1000"),
            (figure(n=0), "R8 kills: nothing was tried"),
            (figure(fired={"in a fill": 0}), "R8 kills: never fired: in a fill"),
        ]:
            self.assertEqual([says], reasons(bad))
        self.assertEqual(["R8 kills: 2 bad of 1000, 1 before"], reasons(figure(bad=2), before=[figure(bad=1)]))

    def test_a_suite_must_pass_and_report(self):
        self.assertEqual(["soak-kills: timed out after 12 s"], reasons(figure(), status="timed out"))
        self.assertEqual(["soak-kills: failed after 12 s"], reasons(status="failed"))
        self.assertEqual(["soak-kills: passed, and reported nothing for R8"], reasons())
        self.assertEqual([], board.reasons({"unit": result("unit")}, {}))

    def test_a_figure_that_went_away(self):
        gone = ["R8 mounts: was reported, and is not any more"]
        self.assertEqual(gone, reasons(figure(), before=[figure(), figure(what="mounts")]))

    def test_worse_than_before_by_more_than_the_tolerance(self):
        for now, old, worse in [
            (measure(0.9), measure(0.4), False),  # The floor of half a second.
            (measure(1.0), measure(0.4), True),
            (measure(14), measure(10), False),
            (measure(16), measure(10), True),
            (measure(1), measure(10), False),
            (measure(0.97, "share", "more"), measure(0.98, "share", "more"), False),
            (measure(0.95, "share", "more"), measure(0.98, "share", "more"), True),
            (measure(97, "%", "more"), measure(99.5, "%", "more"), True),
            (measure(111, "reports", "more"), measure(112, "reports", "more"), True),
            (measure(400, "1/s", "more"), measure(1000, "1/s", "more"), True),
            (measure(3, "1", "more"), measure(1000, "1", "more"), False),
            (measure(99, "parsecs"), measure(10, "parsecs"), True),
            (measure(99, "ms"), measure(10, "s"), False),
        ]:
            with self.subTest(now=now, old=old):
                found = reasons(figure(measures={"m": now}), before=[figure(measures={"m": old})], tier="nightly")
                self.assertEqual(worse, bool(found))
        self.assertEqual(
            ["R8 kills: m is 16 s, 10 s before"],
            reasons(figure(measures={"m": measure(16)}), before=[figure(measures={"m": measure(10)})], tier="release"),
        )

    def test_the_check_tier_compares_no_times_and_rates(self):
        for unit, worse in [("s", False), ("1/s", False), ("%", False), ("share", True), ("reports", True)]:
            now, old = measure(1, unit, "more"), measure(100, unit, "more")
            found = reasons(figure(measures={"m": now}), before=[figure(measures={"m": old})])
            self.assertEqual(worse, bool(found), unit)


class Merged(unittest.TestCase):
    def test_parts_add_up_and_a_suite_that_runs_again_takes_its_place(self):
        first = board.merged({}, [result("it"), result("mount", tier="release")])
        second = board.merged(first, [result("fuzz", status="failed"), result("it", [figure("R9")])])
        self.assertEqual(["it", "fuzz"], list(second["check"]))
        self.assertEqual(1, len(second["check"]["it"]["figures"]))
        self.assertEqual([], first["check"]["it"]["figures"])
        third = board.merged(second, [result("model", commit="b2")])
        self.assertEqual((["it", "fuzz", "model"], ["mount"]), (list(third["check"]), list(third["release"])))
        self.assertEqual(["a1", "b2"], [third["check"][name]["commit"] for name in ("it", "model")])


class Table(unittest.TestCase):
    def row(self, text, row):
        return [line for line in text.splitlines() if line.startswith(f"| {row} ")]

    def test_every_row_has_a_figure_or_a_reason(self):
        kills = figure(seed=7, fired={"in a fill": 1234}, measures={"p99": measure(0.4)}, note="a|b")
        text = board.table(board.merged({}, [result(figures=[kills]), result("fuzz", status="failed")]))
        for row in board.ROWS:
            self.assertEqual(1, len(self.row(text, row)), row)
        (line,) = self.row(text, "R8")
        for cell in [
            "| 1,000 | 0 | < 0.30 % | 7 |",
            "in a fill: 1,234",
            "p99: 0.4 s",
            r"a\|b",
            "| check | a1 | 6.18 |",
        ]:
            self.assertIn(cell, line)
        self.assertIn("no figure: `fuzz` failed (check)", self.row(text, "R26")[0])
        self.assertIn("not run: `mount`, `suites`", self.row(text, "R5")[0])
        self.assertIn("source only", self.row(text, "R3")[0])
        self.assertIn("| `fuzz` | check | failed | 12 s |", text)
        width = {line.replace(r"\|", "").count("|") for line in text.splitlines() if line.startswith("| R")}
        self.assertEqual({13}, width)

    def test_a_row_of_two_suites_says_which_is_missing(self):
        lines = self.row(board.table(board.merged({}, [result("it", [figure("R6")])])), "R6")
        self.assertEqual(2, len(lines))
        self.assertIn("not run: `model` |", lines[1])

    def test_the_longest_tier_is_shown(self):
        kills = [result(figures=[figure(n=n)], tier=tier) for n, tier in [(1000, "release"), (20, "check")]]
        (line,) = self.row(board.table(board.merged({}, kills)), "R8")
        self.assertIn("| 1,000 |", line)

    def test_bounds(self):
        for n, bad, shown in [
            (1000, 0, "< 0.30 %"),
            (20, 0, "< 15 %"),
            (3, 0, ""),
            (1000, 1, ""),
            (10**8, 0, "< 0.0000030 %"),
        ]:
            self.assertEqual(shown, board.bound(n, bad), n)


def load_runner():
    """The program, which has no name that Python imports."""
    path = str(Path(__file__).with_name("scoreboard"))
    loader = importlib.machinery.SourceFileLoader("scoreboard", path)
    runner = importlib.util.module_from_spec(importlib.util.spec_from_loader("scoreboard", loader))
    # It would leave its compiled form beside the program.
    with mock.patch.object(sys, "dont_write_bytecode", True):
        loader.exec_module(runner)
    return runner


class Runner(unittest.TestCase):
    """The program over suites that are small scripts."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.runner = load_runner()
        # Not the name of the real one, whose committed figures would be compared with.
        self.runner.PUBLISHED = self.folder / "published"
        self.runner.GRACE_SECONDS = 1
        self.runner.prepare = lambda: None
        line = json.dumps(figure(fired={"in a fill": 5}))
        self.runner.SUITES = {
            "fuzz": [(self.script("fails", "echo words of it; exit 3"), 1)] * 3,
            "model": [(self.script("hangs", "trap '' TERM; sleep 60 & sleep 60; sleep 60"), 0.01)] * 3,
            "soak-kills": [(self.script("good", f'echo \'{line}\' >>"$WARMFS_FIGURES"; echo "$WARMFS_TIER"'), 1)] * 3,
        }

    def script(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def call(self, *arguments):
        """Its exit code and what it said."""
        said = io.StringIO()
        arguments = ["scoreboard", *arguments, "--out", str(self.folder / "out")]
        with mock.patch.object(sys, "argv", arguments), mock.patch.object(os, "geteuid", lambda: 0):
            with contextlib.redirect_stdout(said), self.assertRaises(SystemExit) as end:
                self.runner.main()
        return end.exception.code, said.getvalue()

    def test_a_suite_that_fails_or_hangs_does_not_stop_the_others(self):
        code, said = self.call("nightly")
        self.assertEqual(1, code)
        for line in ["words of it", "scoreboard: fuzz: failed after", "scoreboard: model: timed out after"]:
            self.assertIn(line, said)
        self.assertIn("scoreboard: 1 figures, 2 reasons", said)
        self.assertEqual("nightly\n", (self.folder / "out/nightly/soak-kills.log").read_text())
        self.assertIn("| R8 kill -9", (self.runner.PUBLISHED / "SCOREBOARD.md").read_text())

    def test_parts_add_up_and_a_dry_run_publishes_nothing(self):
        self.assertEqual(0, self.call("--only", "soak-kills", "--dry")[0])
        self.assertFalse(self.runner.PUBLISHED.exists())
        code, said = self.call("--only", "fuzz")
        self.assertEqual(1, code)
        self.assertIn("scoreboard: 1 figures, 1 reasons", said)
        results = json.loads((self.runner.PUBLISHED / "scoreboard.json").read_text())
        self.assertEqual({"check": ["soak-kills", "fuzz"]}, {tier: list(suites) for tier, suites in results.items()})


if __name__ == "__main__":
    unittest.main()
