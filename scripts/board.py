"""The scoreboard without its runs: what the rows are, how figures are put together, when they are bad or worse than
before, and the table. `scripts/scoreboard` runs the suites; `scripts/test_board.py` tests this.

A figure is one JSON line, as tests/figures.rs writes them: figure (its row), what, n, bad; seed, fired, measures, note.
A result is what became of one suite: suite, tier, commit, kernel, date, seconds, status ("passed", "failed", "timed out")
and its figures. A board is a result for each tier and suite: {"check": {"it": {...}, ...}, ...}.
"""

import json

TIERS = ["check", "nightly", "release"]

SOURCE_ONLY = "not run: to be had as source only, which the machines used cannot fetch"

# Every row: its short name, and the suites that must report figures for it when they pass, or why there are none.
ROWS = {
    "R1": ("pjdfstest, in Rust", ["suites"]),
    "R2": ("pjdfstest, in C", SOURCE_ONLY),
    "R3": ("xfstests, generic", SOURCE_ONLY),
    "R4": ("LTP: files and system calls", SOURCE_ONLY),
    "R5": ("fsx", ["mount", "suites"]),
    "R6": ("random operations against a model", ["it", "model"]),
    "R7": ("chosen schedules of the concurrent core", ["schedules"]),
    "R8": ("kill -9 at random instants", ["soak-kills"]),
    "R9": ("power cuts", ["it"]),
    "R10": ("bit flips in the cache", ["it"]),
    "R11": ("cache objects tampered with or removed", ["mount"]),
    "R12": ("a full disk, and the budget", ["mount"]),
    "R13": ("each call on the cache fails in turn", ["it"]),
    "R14": ("each call on the source fails in turn", ["it"]),
    "R15": ("a source that hangs", ["mount"]),
    "R16": ("changes of the source are seen", ["model"]),
    "R17": ("replacement by rename under readers", ["model"]),
    "R18": ("opens while files change mode", ["mount"]),
    "R19": ("invalidation under maps", ["mount"]),
    "R20": ("one fetch for all who ask", ["mount"]),
    "R21": ("long soak", ["soak-ops"]),
    "R22": ("memory", ["mount"]),
    "R23": ("signals", ["mount"]),
    "R24": ("ends of a mount", ["mount"]),
    "R25": ("real clients on real data", ["real-data"]),
    "R26": ("fuzzing", ["fuzz"]),
    "R27": ("decoding", "not applicable: warmfs decodes nothing"),
    "R28": ("security table", ["mount"]),
    "R29": ("coverage and mutants", "not run: not measured yet"),
    "R30": ("public fault reports as tests", ["it"]),
}

# By how much a measure may be worse than the committed one, by its unit: the larger of a part of it and an amount.
# Times and rates are of machines that may be busy; shares are not. None: how much there was to do, which is not compared.
TOLERANCES = {
    "share": (0, 0.02),
    "%": (0, 2),
    "reports": (0, 0),
    "s": (0.5, 0.5),
    "ms": (0.5, 50),
    "1/s": (0.5, 0),
    "/s": (0.5, 0),
    "x": (0.5, 1),
    "B": (0.25, 50),
    "MiB": (0.25, 4),
    "": (0.2, 50),
    "1": None,
}
OTHER_UNITS = (0.5, 0)
# What the check tier compares: it runs on anybody's machine, beside whatever else, and its amounts are small.
UNITS_OF_CHECK = {"share", "reports"}


def parse(text):
    """The figures in the lines of `text`, those of one name as one; and what is wrong with the lines."""
    figures, problems = [], []
    for line in filter(None, text.splitlines()):
        try:
            figure = json.loads(line)
            if figure["figure"] not in ROWS:
                raise ValueError(f"no row {figure['figure']}")
            if not (
                isinstance(figure["n"], int) and isinstance(figure["bad"], int) and isinstance(figure["what"], str)
            ):
                raise ValueError("n and bad are numbers, what is text")
            figures.append(figure)
        except (KeyError, TypeError, ValueError) as error:
            problems.append(f"not a figure ({error}): {line}")
    return together(figures), problems


def together(figures):
    """Figures of one name as one, at the place of the first."""
    found = {}
    for figure in figures:
        name = name_of(figure)
        found[name] = added(found[name], figure) if name in found else figure
    return list(found.values())


def name_of(figure):
    return figure["figure"], figure["what"]


def added(one, other):
    """Both as one: trials are added, of measures the worse stays, and a kind that never fired in one of them never did."""
    both = {**one, **other, "n": one["n"] + other["n"], "bad": one["bad"] + other["bad"]}
    seeds = [str(figure["seed"]) for figure in (one, other) if "seed" in figure]
    if len(set(seeds)) > 1:
        both["seed"] = ", ".join(seeds)
    if "fired" in one or "fired" in other:
        a, b = one.get("fired", {}), other.get("fired", {})
        never = {kind for kind, count in [*a.items(), *b.items()] if count == 0}
        both["fired"] = {kind: 0 if kind in never else a.get(kind, 0) + b.get(kind, 0) for kind in {**a, **b}}
    if "measures" in one or "measures" in other:
        a, b = one.get("measures", {}), other.get("measures", {})
        both["measures"] = {**a, **b, **{name: worse_of(a[name], b[name]) for name in a if name in b}}
    return both


def worse_of(one, other):
    return max(one, other, key=lambda m: m["value"] if m["better"] == "less" else -m["value"])


def merged(board, results):
    """`board` with these results in the place of what it had for their tiers and suites. What it has of other commits
    stays, with the commit beside each figure: the longest tier takes more than a day, and is done in parts."""
    new = {tier: dict(suites) for tier, suites in board.items()}
    for result in results:
        new.setdefault(result["tier"], {})[result["suite"]] = result
    return new


def reasons(suites, committed):
    """Why a tier is not good, one line each: its results by suite, and the committed ones of the same tier."""
    found = []
    for name, result in suites.items():
        if result["status"] != "passed":
            found.append(f"{name}: {result['status']} after {result['seconds']:.0f} s")
        found += [f"{name}: {problem}" for problem in result.get("problems", [])]
        reported = {figure["figure"] for figure in result["figures"]}
        for row, (_, wanted) in ROWS.items():
            if result["status"] == "passed" and name in wanted and row not in reported:
                found.append(f"{name}: passed, and reported nothing for {row}")
        before = {name_of(figure): figure for figure in committed.get(name, {}).get("figures", [])}
        now = {name_of(figure) for figure in result["figures"]}
        for figure in result["figures"]:
            old = before.get(name_of(figure))
            found += [f"{called(figure)}: {why}" for why in wrong_with(figure, old, result["tier"])]
        if result["status"] == "passed":
            found += [f"{called(f)}: was reported, and is not any more" for n, f in before.items() if n not in now]
    return found


def called(figure):
    return f"{figure['figure']} {figure['what']}"


def wrong_with(figure, before, tier):
    """What is wrong with a figure, in itself and beside the one `before`, if there was one."""
    if figure["bad"]:
        more = f", {before['bad']} before" if before and figure["bad"] > before["bad"] else ""
        yield f"{figure['bad']} bad of {figure['n']}{more}"
    if figure["n"] == 0:
        yield "nothing was tried"
    for kind, count in figure.get("fired", {}).items():
        if not count:
            yield f"never fired: {kind}"
    for name, measure in figure.get("measures", {}).items():
        old = (before or {}).get("measures", {}).get(name)
        compared = tier != "check" or measure["unit"] in UNITS_OF_CHECK
        if old and compared and is_worse(measure, old):
            yield f"{name} is {amount(measure)}, {amount(old)} before"


def is_worse(measure, old):
    tolerance = TOLERANCES.get(measure["unit"], OTHER_UNITS)
    if tolerance is None or measure["unit"] != old["unit"]:
        return False
    grown = measure["value"] - old["value"]
    if measure["better"] == "more":
        grown = -grown
    return grown > max(tolerance[0] * abs(old["value"]), tolerance[1]) + 1e-9


def table(board):
    """The board as Markdown. A figure stands there once, from the longest tier that has it."""
    lines = [
        "# What proves that warmfs never lies",
        "",
        "Made by `scripts/scoreboard`; do not edit. `n` is what was tried and `bad` how often it went wrong. Beside a zero"
        " stands what it says: with 95 % confidence the rate is below that (3/n, if the trials are independent). `fired`"
        " is how often the fault that the row is about really happened; a kind that never did would make the run fail. A"
        " seed gives the same choices again: `WARMFS_TEST_SEED`.",
        "",
        "| row | figure | n | bad | 95 % bound | seed | fired | measures | note | tier | commit | kernel |",
        "|---|---|---:|---:|---:|---|---|---|---|---|---|---|",
    ]
    for row, (name, suites) in ROWS.items():
        title = f"{row} {name}"
        found = list(figures_of(board, row))
        lines += [line_of([title, *cells_of(figure, result)]) for figure, result in found]
        reported = {result["suite"] for _, result in found}
        wanted = suites if isinstance(suites, str) else [name for name in suites if name not in reported]
        if wanted:
            lines.append(line_of([title, missing(board, wanted), *[""] * 10]))
    return "\n".join([*lines, "", *suites_table(board)]) + "\n"


def figures_of(board, row):
    """The figures of a row with their results, each from the longest tier that has it."""
    seen = set()
    for tier in reversed(TIERS):
        for name, result in board.get(tier, {}).items():
            for figure in result["figures"]:
                if figure["figure"] == row and (name, figure["what"]) not in seen:
                    seen.add((name, figure["what"]))
                    yield figure, result


def missing(board, suites):
    """Why a row has no figure of these suites."""
    if isinstance(suites, str):
        return suites
    ends = [f"`{n}` {board[t][n]['status']} ({t})" for t in TIERS for n in suites if n in board.get(t, {})]
    return f"no figure: {', '.join(ends)}" if ends else f"not run: {', '.join(f'`{name}`' for name in suites)}"


def cells_of(figure, result):
    fired = [f"{kind}: {count:,}" for kind, count in figure.get("fired", {}).items()]
    measures = [f"{name}: {amount(measure)}" for name, measure in figure.get("measures", {}).items()]
    return [
        figure["what"],
        f"{figure['n']:,}",
        f"**{figure['bad']:,}**" if figure["bad"] else "0",
        bound(figure["n"], figure["bad"]),
        str(figure.get("seed", "")),
        "; ".join(fired),
        "; ".join(measures),
        figure.get("note", ""),
        result["tier"],
        result["commit"],
        result["kernel"],
    ]


def bound(n, bad):
    """What no failure in n independent trials says about their rate."""
    if bad or n <= 3:
        return ""
    percent = 300 / n
    # Two digits that count, and never an exponent.
    digits = next(d for d in range(20) if percent * 10**d >= 10) if percent < 10 else 0
    return f"< {percent:.{digits}f} %"


def amount(measure):
    value = measure["value"]
    shown = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    unit = "" if measure["unit"] in ("", "1", "share") else measure["unit"]
    return f"{shown} {unit}".strip()


def line_of(cells):
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def suites_table(board):
    yield "| suite | tier | result | time | date | commit | kernel |"
    yield "|---|---|---|---:|---|---|---|"
    for tier in TIERS:
        for name, result in board.get(tier, {}).items():
            facts = [result["date"], result["commit"], result["kernel"]]
            yield line_of([f"`{name}`", tier, result["status"], f"{result['seconds']:,.0f} s", *facts])
