"""Makes a page of benchmark results: one HTML file that needs nothing else.

    report.py RESULTS.tsv INDEX.html

Reads the lines that bench/lib/results.h describes. Each benchmark becomes a section: its goals, each
with a line at the limit, then a plot for each figure, with a bar for each contestant. Lines that it
does not know are an error; otherwise nobody would notice that a result is missing.
"""

import html
import sys
from collections import OrderedDict, namedtuple

Result = namedtuple("Result", "figure placement who unit better median lowest highest")
Goal = namedtuple(
    "Goal", "text placement figure who base unit value lowest highest sign limit at met"
)
NUMBERS = {"median", "lowest", "highest", "value", "limit", "at"}

TITLES = {
    "rpc": (
        "Calls",
        "Two processes, one call after the other or 64 at a time. Local: as workers of one host do, on a "
        "unix socket. Network: as workers of two hosts do, by gRPC over TCP. Busy machine: an endless loop "
        "runs on each CPU. Others are compared with local.",
    ),
    "rref": (
        "Remote references",
        "Made, used, passed on and dropped; and a million at once. Local and network as with calls.",
    ),
    "store": ("Stores", "The TCP store beside Redis and PyTorch’s TCPStore."),
    "rendezvous": ("Rendezvous", "From the first node’s start until the last has its rank."),
    "transport": (
        "Transport",
        "What is below a call: one message there and back. Local is what workers of one host use, gRPC "
        "on TCP what all others do.",
    ),
    "lane": ("Lane", "What a message costs in our own code, without a network."),
    "map": ("Map", "The hash map below all tables, by its size."),
    "counts": (
        "Counts",
        "What an operation costs, local and network, in numbers that a noisy machine does not change.",
    ),
}
PLACEMENTS = {
    "same": "client and server on one CPU",
    "split": "client and server on two CPUs",
    "local": "as between workers of one host, on a unix socket",
    "network": "as between hosts, by gRPC over TCP",
}


class Bench:
    def __init__(self, name):
        self.name = name
        self.results, self.goals, self.notes = [], [], []
        self.about = OrderedDict()
        self.seconds = 0.0


def record(kind, fields):
    if len(fields) != len(kind._fields):
        raise ValueError("a line of %d fields, not %d" % (len(fields), len(kind._fields)))
    return kind(*(float(v) if k in NUMBERS else v for k, v in zip(kind._fields, fields)))


def read(lines):
    benches = OrderedDict()
    for number, line in enumerate(lines, 1):
        kind, name, *fields = line.rstrip("\n").split("\t")
        bench = benches.setdefault(name, Bench(name))
        try:
            if kind == "result":
                bench.results.append(record(Result, fields))
            elif kind == "goal":
                bench.goals.append(record(Goal, fields))
            elif kind == "note" and fields[0] not in bench.notes:
                bench.notes.append(fields[0])
            elif kind == "about":
                bench.about[fields[0]] = fields[1]
            elif kind == "took":
                bench.seconds = float(fields[0])
            elif kind != "note":
                raise ValueError("no such kind: %s" % kind)
        except (ValueError, IndexError) as error:
            raise SystemExit("line %d: %s" % (number, error))
    order = list(TITLES)
    return sorted(benches.values(), key=lambda b: order.index(b.name) if b.name in order else 99)


# ---- Text ----------------------------------------------------------------------------------------


def esc(text):
    return html.escape(str(text), quote=True)


def figures(value):
    """Three significant figures or more, thousands apart."""
    size = abs(value)
    decimals = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2 if size >= 0.1 else 3
    return "{:,.{}f}".format(value, decimals)


def with_unit(value, unit):
    spaced = {"us": " µs", "ns": " ns", "ms": " ms", "x": "×", "": ""}.get(unit)
    if spaced is None:
        spaced = unit if unit.startswith("/") else " " + unit
    return figures(value) + spaced


def times(factor):
    return figures(factor if factor < 100 else round(factor)) + "×"


def compared(result, ours):
    """Compares another contestant with Tether, in words."""
    if not ours or result.who.startswith("Tether") or not ours.median or not result.median:
        return ""
    factor = result.median / ours.median
    if result.better == "more":
        factor = 1 / factor
    slower, faster = ("slower", "faster") if result.unit != "B" else ("larger", "smaller")
    if 0.95 < factor < 1.05:
        return "about the same"
    return times(factor) + " " + slower if factor > 1 else times(1 / factor) + " " + faster


# ---- Parts of the page ---------------------------------------------------------------------------


def bar(result, scale, ours):
    percent = lambda value: "%.2f%%" % (100 * min(max(value / scale, 0), 1))
    whisker = ""
    is_cut = result.median > scale
    if result.highest > result.lowest and not is_cut:
        whisker = '<i class="range" style="left:%s;right:calc(100%% - %s)"></i>' % (
            percent(result.lowest),
            percent(result.highest),
        )
    title = "%s to %s" % (figures(result.lowest), with_unit(result.highest, result.unit))
    return (
        '<div class="row{own}{cut}" title="{title}"><span class="who">{who}</span>'
        '<span class="track"><b style="width:{width}"></b>{whisker}</span>'
        '<span class="value">{value}</span><span class="ratio">{ratio}</span></div>'
    ).format(
        own=" own" if result.who.startswith("Tether") else "",
        cut=" cut" if is_cut else "",
        title=esc(title),
        who=esc(result.who),
        width=percent(result.median),
        whisker=whisker,
        value=esc(with_unit(result.median, result.unit)),
        ratio=esc(compared(result, ours)),
    )


def strictest(goals):
    limits = [goal.at for goal in goals if goal.at > 0]
    if not limits:
        return None
    return max(limits) if goals[0].sign == ">=" else min(limits)


def scale_of(results, limit):
    """The value at the right end. A bar far longer than the others is cut, so that these stay visible."""
    ends = sorted(r.highest for r in results)
    if len(ends) > 2 and ends[-1] > 2.5 * ends[-2]:
        ends.pop()
    return max(1.04 * max(ends[-1], limit or 0), 1e-12)


def group(placement, results, goals):
    """The bars of one figure in one placement, the best first, with the goal as a line."""
    ours = next((r for r in results if r.who.startswith("Tether")), None)
    limit = strictest(goals)
    scale = scale_of(results, limit)
    best_first = sorted(results, key=lambda r: r.median, reverse=results[0].better == "more")
    keep_order = not ours  # sizes have an order of their own
    rows = "".join(bar(r, scale, ours) for r in (results if keep_order else best_first))
    line = ""
    if limit:
        line = (
            '<div class="row goal-row"><span class="who"></span><span class="track">'
            '<i class="goal" style="left:%.2f%%"><span>goal %s</span></i></span>'
            '<span class="value"></span><span class="ratio"></span></div>'
        ) % (100 * limit / scale, esc(with_unit(limit, results[0].unit)))
    heading = ""
    if placement in PLACEMENTS:
        heading = '<h4>%s <span>%s</span></h4>' % (esc(placement), esc(PLACEMENTS[placement]))
    return '<div class="group">%s<div class="bars">%s%s</div></div>' % (heading, rows, line)


def plot(figure, bench):
    results = [r for r in bench.results if r.figure == figure]
    groups = "".join(
        group(
            placement,
            [r for r in results if r.placement == placement],
            [g for g in bench.goals if g.figure == figure and g.placement == placement],
        )
        for placement in OrderedDict.fromkeys(r.placement for r in results)
    )
    better = "more is better" if results[0].better == "more" else "less is better"
    return '<article><h3>%s <span>%s</span></h3><div class="groups">%s</div></article>' % (
        esc(figure),
        better,
        groups,
    )


def goal_line(goal):
    """A bullet: the limit is always in the middle, so that all bullets can be compared."""
    share = goal.value / goal.limit if goal.limit else (0 if goal.value <= 0 else 2)
    met = goal.met == "yes"
    place = goal.placement if goal.placement in PLACEMENTS else ""
    return (
        '<tr class="{cls}"><td class="chip"><span>{chip}</span></td><td>{text}</td><td>{place}</td>'
        '<td class="num">{value}</td><td class="num dim">{low} to {high}</td>'
        '<td class="num">{sign} {limit}</td>'
        '<td class="bullet"><span><b style="width:{width:.1f}%"></b><i></i></span></td></tr>'
    ).format(
        cls="met" if met else "missed",
        chip="met" if met else "missed",
        text=esc(goal.text),
        place=esc(place),
        value=esc(with_unit(goal.value, goal.unit)),
        low=esc(figures(goal.lowest)),
        high=esc(figures(goal.highest)),
        sign="at least" if goal.sign == ">=" else "at most",
        limit=esc(with_unit(goal.limit, goal.unit)),
        width=min(max(50 * share, 0), 100),
    )


def goals_table(bench):
    if not bench.goals:
        return ""
    head = "<tr><th></th><th>Goal</th><th>Where</th><th>Measured</th><th>Range</th><th>Limit</th><th></th></tr>"
    return '<div class="scroll"><table class="goals"><thead>%s</thead><tbody>%s</tbody></table></div>' % (
        head,
        "".join(map(goal_line, bench.goals)),
    )


def met(goals):
    return sum(goal.met == "yes" for goal in goals), len(goals)


def section(bench):
    title, words = TITLES.get(bench.name, (bench.name, ""))
    count = ""
    if bench.goals:
        count = '<span class="count">%d of %d goals met</span>' % met(bench.goals)
    notes = "".join("<li>%s</li>" % esc(note) for note in bench.notes)
    when = [bench.about[key] for key in ("date", "revision") if key in bench.about]
    return '<section id="{id}"><h2>{title} {count}</h2><p class="lead">{words}</p>{notes}{goals}{plots}<p class="when">{when}</p></section>'.format(
        id=esc(bench.name),
        title=esc(title),
        count=count,
        words=esc(words),
        notes="<ul>%s</ul>" % notes if notes else "",
        goals=goals_table(bench),
        plots='<div class="plots">%s</div>'
        % "".join(plot(f, bench) for f in OrderedDict.fromkeys(r.figure for r in bench.results)),
        when=esc("Measured %s%s" % (", revision ".join(when), ", in %.0f s." % bench.seconds if bench.seconds else "."))
        if when
        else "",
    )


def tile(bench):
    title, _ = TITLES.get(bench.name, (bench.name, ""))
    good, all_goals = met(bench.goals)
    text = "%d / %d" % (good, all_goals) if all_goals else "%d" % len(bench.results)
    words = "goals met" if all_goals else "figures"
    meter = ""
    if all_goals:
        meter = '<span class="meter"><b style="width:%.1f%%"></b></span>' % (100 * good / all_goals)
    return '<a class="tile" href="#%s"><span>%s</span><strong>%s</strong><em>%s</em>%s</a>' % (
        esc(bench.name),
        esc(title),
        text,
        words,
        meter,
    )


def machine(benches):
    """Returns values that are the same for all benchmarks; others are in the sections."""
    rows = OrderedDict()
    for bench in benches:
        for key, value in bench.about.items():
            if key not in ("date", "revision", "load"):
                rows.setdefault(key, OrderedDict())[value] = None
    cells = "".join(
        "<dt>%s</dt><dd>%s</dd>" % (esc(key), esc("; ".join(values))) for key, values in rows.items()
    )
    return '<section id="machine"><h2>Machine and versions</h2><dl>%s</dl></section>' % cells


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tether benchmarks</title>
<style>%(style)s</style></head>
<body><main>
<header><div><h1>Tether benchmarks</h1><p>%(summary)s</p></div>
<button id="theme" type="button" aria-label="Change between light and dark">◐</button></header>
<nav class="tiles">%(tiles)s</nav>
<p class="lead">Everything in a plot was measured by turns in the same minutes, so ratios hold where
absolute figures depend on the machine. Bars are medians of the rounds; the thin line on a bar goes
from the lowest to the highest round, the dashed line is the strictest goal. A bar with a gap goes on
beyond the plot.</p>
%(sections)s%(machine)s
</main><script>%(script)s</script></body></html>
"""


def page(benches, style, script):
    all_goals = [goal for bench in benches for goal in bench.goals]
    dates = sorted({b.about["date"][:10] for b in benches if "date" in b.about})
    summary = "%d of %d goals met" % met(all_goals) if all_goals else ""
    if dates:
        summary += " · " + (dates[0] if len(dates) == 1 else dates[0] + " to " + dates[-1])
    return PAGE % {
        "style": style,
        "script": script,
        "summary": esc(summary),
        "tiles": "".join(map(tile, benches)),
        "sections": "".join(map(section, benches)),
        "machine": machine(benches),
    }


def main(results, index):
    import report_look

    with open(results, encoding="utf-8") as lines:
        benches = read(lines)
    text = page(benches, report_look.STYLE, report_look.SCRIPT)
    with open(index, "w", encoding="utf-8") as out:
        out.write(text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
