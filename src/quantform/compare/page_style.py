"""How a report looks, and the script that sorts its table."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

# The series' colours are Okabe and Ito's, told apart by people who do not see all colours; light and dark variants.
STYLE = """
:root{color-scheme:light dark;--paper:#fff;--panel:#f6f7f9;--ink:#1b1f24;--soft:#68707c;--grid:#dde1e7;
--accent:#0a66a8;--s0:#0072b2;--s1:#d55e00;--s2:#009e73;--s3:#b5498a;--s4:#8a6d00;--s5:#3a9bd1;--s6:#6b4fa0;--s7:#444b55}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14171b;--panel:#1d2126;--ink:#e8eaed;--soft:#9aa3af;
--grid:#323841;--accent:#6cb8ee;--s0:#56b4e9;--s1:#ff9442;--s2:#2ecc9b;--s3:#e58fc0;--s4:#e6c229;--s5:#9ad4f5;
--s6:#b79cf0;--s7:#c8ced6}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem clamp(1rem,4vw,3rem);max-width:84rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 1.2rem;overflow-wrap:anywhere}
h1 small{font-weight:400;font-size:1.1rem;color:var(--soft)}
h2{font-size:1.15rem;margin:2.2rem 0 .8rem;overflow-wrap:anywhere}
code{font:0.92em ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
.sides{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1rem}
.sides section,figure,.numbers div{background:var(--panel);border:1px solid var(--grid);border-radius:.6rem}
.sides section{padding:.9rem 1.1rem}
.sides h2{margin:0 0 .2rem;font-size:.85rem;color:var(--soft);font-weight:600}
.sides p{margin:.15rem 0}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.4rem,1fr));gap:.8rem;margin:1rem 0 0}
.numbers div{padding:.7rem .8rem}
.numbers dd{margin:0;font-size:1.05rem;font-weight:600;font-variant-numeric:tabular-nums;white-space:nowrap}
.numbers dt{font-size:.82rem;color:var(--soft)}
main>figure{margin:1.2rem 0}
figure{margin:0;padding:1rem 1.1rem;break-inside:avoid}
figure svg{display:block;width:100%;height:auto;max-height:34rem}
figcaption{margin-bottom:.4rem}
figcaption strong{display:block}
figcaption span{font-size:.82rem;color:var(--soft);display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:3;
overflow:hidden}
.pairs{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:1rem}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;margin:.5rem 0 0;padding:0;font-size:.85rem}
.legend li{overflow-wrap:anywhere}
.legend i{font-style:normal;margin-right:.4rem}
.wide{overflow-x:auto;border:1px solid var(--grid);border-radius:.6rem}
table{border-collapse:collapse;width:100%;font-size:.86rem}
caption{text-align:left;padding:.7rem .9rem;color:var(--soft)}
th,td{padding:.35rem .6rem;text-align:left;vertical-align:top;border-top:1px solid var(--grid)}
tbody th,tfoot th{font-weight:500;overflow-wrap:anywhere;min-width:15rem}
td{white-space:nowrap;font-variant-numeric:tabular-nums}
.n{text-align:right}
.same{color:var(--s2)}
.wrong{font-weight:600}
tfoot th,tfoot td{font-weight:600;background:var(--panel);border-top:2px solid var(--soft)}
thead th{background:var(--panel);padding:0}
thead button{all:unset;display:block;box-sizing:border-box;width:100%;padding:.5rem .6rem;cursor:pointer;
font-weight:600;white-space:nowrap}
thead button:focus-visible{outline:2px solid var(--accent);outline-offset:-2px}
thead button:hover::after,thead button:focus-visible::after{content:"\\2195";color:var(--soft);
margin-left:.2rem;font-weight:400}
thead [aria-sort=ascending] button::after{content:"\\2191";color:var(--accent)}
thead [aria-sort=descending] button::after{content:"\\2193";color:var(--accent)}
tbody tr:hover{background:var(--panel)}
.bar{display:block;height:3px;margin:2px 0 0 auto;border-radius:2px;background:var(--s0)}
details{border:1px solid var(--grid);border-radius:.6rem;padding:.7rem 1.1rem}
details ul{margin:.5rem 0 0;padding-left:1.2rem;overflow-wrap:anywhere}
footer{margin-top:2.5rem;color:var(--soft);font-size:.82rem}
@media print{body{max-width:none;padding:0;font-size:10pt}.wide{overflow:visible;border:0}table{font-size:7pt}
th,td{padding:.15rem .3rem}tbody th,tfoot th{min-width:0}thead button{padding:.15rem .3rem}
thead button::after,thead [aria-sort] button::after{content:""}thead{display:table-header-group}
tr{break-inside:avoid}figure,.sides section,.numbers div{background:none}}
"""

SCRIPT = """
for (const button of document.querySelectorAll("thead button")) button.addEventListener("click", () => {
  const head = button.parentElement, column = head.cellIndex, body = head.closest("table").tBodies[0];
  const up = head.getAttribute("aria-sort") === "descending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = row => { const cell = row.cells[column], value = cell.dataset.v;
    return value === undefined ? cell.textContent : Number(value.replace("inf", "Infinity")); };
  const rows = [...body.rows].map(row => [key(row), row]);
  rows.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1));
  body.append(...rows.map(([, row]) => row));
});
"""
