"""How the page of report.py looks: colours for light and dark, and the button between them."""

STYLE = """
:root{--bg:#f7f7f5;--card:#fff;--ink:#1c2024;--dim:#6b7280;--line:#e4e4e0;--track:#f0f0ec;
--bar:#b9c0c9;--own:#2563eb;--own2:#1d4ed8;--good:#15803d;--goodbg:#dcfce7;--bad:#b45309;
--badbg:#fef3c7;--goal:#db2777;--shadow:0 1px 2px rgba(0,0,0,.05),0 4px 16px rgba(0,0,0,.04);
color-scheme:light}
@media (prefers-color-scheme:dark){:root:not([data-theme=light]){--bg:#0f1215;--card:#181c21;
--ink:#e7eaee;--dim:#98a2b0;--line:#2a3038;--track:#222830;--bar:#56606d;--own:#5b9bff;--own2:#8ab8ff;
--good:#4ade80;--goodbg:#12301d;--bad:#fbbf24;--badbg:#3a2c0b;--goal:#f472b6;--shadow:none;
color-scheme:dark}}
:root[data-theme=dark]{--bg:#0f1215;--card:#181c21;
--ink:#e7eaee;--dim:#98a2b0;--line:#2a3038;--track:#222830;--bar:#56606d;--own:#5b9bff;--own2:#8ab8ff;
--good:#4ade80;--goodbg:#12301d;--bad:#fbbf24;--badbg:#3a2c0b;--goal:#f472b6;--shadow:none;
color-scheme:dark}
*{box-sizing:border-box}
html{scroll-behavior:smooth}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 24px 64px}
header{display:flex;justify-content:space-between;align-items:flex-start;gap:16px}
h1{font-size:30px;line-height:1.2;letter-spacing:-.02em;margin:0}
header p{margin:4px 0 0;color:var(--dim)}
#theme{border:1px solid var(--line);background:var(--card);color:var(--ink);border-radius:10px;
width:40px;height:40px;font-size:18px;cursor:pointer}
#theme:hover{border-color:var(--dim)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:12px;margin:24px 0}
.tile{display:block;background:var(--card);border:1px solid var(--line);border-radius:12px;
padding:12px 14px;color:inherit;text-decoration:none;box-shadow:var(--shadow)}
.tile:hover{border-color:var(--own)}
.tile span,.tile em{color:var(--dim);font-style:normal;font-size:13px}
.tile strong{display:block;font-size:22px;line-height:1.3;font-variant-numeric:tabular-nums}
.meter{display:block;height:4px;border-radius:2px;background:var(--track);margin-top:8px;overflow:hidden}
.meter b{display:block;height:100%;background:var(--good)}
.lead{color:var(--dim);max-width:76ch;margin:4px 0 16px}
section{margin-top:48px}
h2{font-size:22px;letter-spacing:-.01em;margin:0;display:flex;align-items:baseline;gap:12px;flex-wrap:wrap}
.count{font-size:14px;font-weight:500;color:var(--dim)}
section>ul{color:var(--dim);margin:0 0 16px;padding-left:18px;max-width:90ch}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:12px;
box-shadow:var(--shadow);margin-bottom:16px}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:500;color:var(--dim);font-size:12px;padding:10px 12px 6px}
td{padding:7px 12px;border-top:1px solid var(--line)}
th:nth-child(n+4):nth-child(-n+6),.num{text-align:right}
.num{font-variant-numeric:tabular-nums;white-space:nowrap}
.dim{color:var(--dim)}
.chip span{display:inline-block;min-width:58px;text-align:center;border-radius:99px;font-size:12px;
font-weight:600;padding:1px 8px}
.met .chip span{color:var(--good);background:var(--goodbg)}
.missed .chip span{color:var(--bad);background:var(--badbg)}
.bullet{width:150px}
.bullet span{display:block;position:relative;height:8px;border-radius:4px;background:var(--track)}
.bullet b{display:block;height:100%;border-radius:4px;background:var(--good)}
.missed .bullet b{background:var(--bad)}
.bullet i{position:absolute;left:50%;top:-3px;bottom:-3px;width:2px;margin-left:-1px;background:var(--goal)}
.plots{display:grid;gap:16px}
article{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px;
box-shadow:var(--shadow);min-width:0}
h3{font-size:16px;margin:0 0 10px}
h3 span,h4 span{font-weight:400;color:var(--dim);font-size:13px;margin-left:6px}
h4{font-size:13px;margin:0 0 6px;font-weight:600}
.groups{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:20px 36px}
.bars{position:relative}
.row{display:grid;grid-template-columns:minmax(100px,184px) minmax(60px,1fr) 82px 92px;gap:10px;
align-items:center;min-height:26px;font-size:13px}
.who{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;color:var(--dim)}
.own .who{color:var(--own2);font-weight:600}
.track{position:relative;height:14px;background:var(--track);border-radius:3px}
.track b{display:block;height:100%;min-width:2px;background:var(--bar);border-radius:3px}
.own .track b{background:var(--own)}
.cut b{-webkit-mask:linear-gradient(90deg,#000 78%,transparent 78% 80%,#000 80% 82%,transparent 82% 84%,#000 84%);
mask:linear-gradient(90deg,#000 78%,transparent 78% 80%,#000 80% 82%,transparent 82% 84%,#000 84%)}
.range{position:absolute;top:50%;height:2px;margin-top:-1px;min-width:2px;background:var(--ink);opacity:.55}
.value{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;font-weight:600}
.ratio{color:var(--dim);white-space:nowrap;font-size:12px}
.goal-row{position:absolute;inset:0;pointer-events:none;align-items:stretch;min-height:0}
.goal-row .track{height:auto;background:none}
.goal{position:absolute;top:0;bottom:-4px;border-left:2px dashed var(--goal)}
.goal span{position:absolute;top:100%;left:0;transform:translateX(-50%);white-space:nowrap;
font:600 11px/1.4 system-ui,sans-serif;color:var(--goal)}
.bars:has(.goal-row){margin-bottom:20px}
.when{color:var(--dim);font-size:13px;margin:10px 2px 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 20px;background:var(--card);
border:1px solid var(--line);border-radius:12px;padding:16px 18px;font-size:14px}
dt{color:var(--dim)}
dd{margin:0;overflow-wrap:anywhere}
@media (max-width:620px){main{padding:20px 14px 48px}
.row{grid-template-columns:100px minmax(40px,1fr) 78px}.ratio{display:none}}
@media print{#theme{display:none}article,.scroll{break-inside:avoid;box-shadow:none}}
"""

SCRIPT = """
(function(){var root=document.documentElement,key='tether-bench-theme';
function kept(){try{return localStorage.getItem(key)}catch(e){return null}}
if(kept())root.dataset.theme=kept();
document.getElementById('theme').onclick=function(){
var dark=root.dataset.theme?root.dataset.theme==='dark':matchMedia('(prefers-color-scheme: dark)').matches;
root.dataset.theme=dark?'light':'dark';
try{localStorage.setItem(key,root.dataset.theme)}catch(e){}}})();
"""
