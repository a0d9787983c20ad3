"""How a report looks: light and dark, from 400 pixels of width on."""

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; lighter ones on a dark ground.
_LIGHT = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8f8500", "#7a7a7a")
_DARK = ("#56a8e0", "#f0b840", "#2fc79b", "#e29bc4", "#8fd0f5", "#f5844a", "#d8cc3c", "#a0a0a0")


def _variables(ink: str, grid: str, ground: str, card: str, colours: tuple[str, ...]) -> str:
    series = "".join(f"--series-{index}:{colour};" for index, colour in enumerate(colours))
    return f":root{{--ink:{ink};--grid:{grid};--ground:{ground};--card:{card};{series}}}"


STYLE = (
    _variables("#1c2430", "#dfe3e8", "#f4f6f8", "#ffffff", _LIGHT)
    + "@media (prefers-color-scheme: dark){"
    + _variables("#e4e8ee", "#3a4350", "#14181e", "#1f252d", _DARK)
    + "}"
    + "".join(f".part-{index}{{background:var(--series-{index})}}" for index in range(8))
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
header,main{max-width:1240px;margin:0 auto;padding:0 12px}
h1{font-size:1.35rem;margin:14px 0 4px}h2{font-size:1.15rem;margin:22px 0 6px}h3{font-size:1rem;margin:14px 0 4px}
.headline{background:var(--card);border-left:4px solid var(--series-0);padding:8px 12px;margin:8px 0}
p,li{overflow-wrap:anywhere}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr));gap:12px}
figure{margin:0;background:var(--card);padding:10px;border-radius:6px;min-width:0}
figcaption{font-weight:600}
figure p{margin:2px 0;font-size:.85rem}
.chart{display:block;width:100%;height:auto}
.wide{margin:10px 0}.narrow{display:none}
@media (max-width:760px){.wide .broad{display:none}.wide .narrow{display:block}}
.scroll{overflow-x:auto}details .scroll{max-height:320px;overflow-y:auto}
table{border-collapse:collapse;font-size:.85rem}
th,td{text-align:left;padding:2px 10px 2px 0;border-bottom:1px solid var(--grid)}td{font-variant-numeric:tabular-nums}
.flow{display:flex;height:34px;border-radius:6px;overflow:hidden}
.flow .part{min-width:3px;overflow:hidden;text-align:center;line-height:34px;color:#10151b}
.legend{list-style:none;padding:0;margin:6px 0;display:flex;flex-wrap:wrap;gap:4px 16px}
.legend i{display:inline-block;width:11px;height:11px;margin-right:5px;border-radius:2px}
.hints li{margin:4px 0}
.responses pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);
  padding:6px 10px;margin:2px 0;font-size:.8rem}
.responses p{margin:8px 0 2px;font-size:.85rem}
details summary{cursor:pointer;font-size:.85rem}
"""
)
