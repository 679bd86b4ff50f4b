"""The style sheet of a page: light and dark, from phones to wide screens."""

STYLE = """
:root{--ink:#1b1b1e;--soft:#5a5a64;--paper:#fff;--card:#f6f6f8;--rule:#dcdce2;--s0:#1f6fb4;--s1:#8a8a93;--s2:#c2571a;--s3:#2d8159;
--s4:#b3382b;--s5:#7350a0;--warn:#fff3dc;--warned:#b26a00;
--v0:#440154;--v1:#414487;--v2:#2a788e;--v3:#22a884;--v4:#5ab33e;--v5:#d0a800;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ink:#ececf1;--soft:#a9a9b4;--paper:#141417;--card:#1e1e23;--rule:#3a3a43;--s0:#6fb3ee;
--s1:#8f8f9b;--s2:#f0965a;--s3:#62c795;--s4:#ef7b6e;--s5:#b494e6;--warn:#33270f;--warned:#f0b45a;
--v0:#7d4a8f;--v1:#6f73c0;--v2:#3f9db5;--v3:#35c79f;--v4:#8fdc6a;--v5:#fde725}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem clamp(.8rem,3vw,2.5rem) 4rem;max-width:82rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.25rem;margin:2.2rem 0 .6rem;border-top:1px solid var(--rule);
padding-top:1rem}h3{font-size:1rem;margin:0}
a{color:var(--s0)}a:focus-visible,summary:focus-visible,.wide:focus-visible{outline:3px solid var(--s2);outline-offset:2px}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:.5rem;background:var(--paper);padding:.4rem}
nav ul,.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;margin:.3rem 0}
.big{font-size:2rem;font-weight:600;line-height:1.1;margin:.3rem 0}
.said,.soft{color:var(--soft);margin:.2rem 0;font-size:.92rem}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:1rem}
.slices{grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr))}
figure,.card{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:.5rem;padding:.8rem;min-width:0}
svg{width:100%;max-width:46rem;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg .tick,svg .name{fill:var(--soft);font-size:11px}svg .halo{paint-order:stroke;stroke:var(--card);stroke-width:3px}
svg .grid{stroke:var(--rule);stroke-width:1}svg .axis{stroke:var(--soft);stroke-width:1}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.thin{fill:none;stroke-width:1;opacity:.65}.band{opacity:.22;stroke:none}
.bar{fill:var(--s0)}
.line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1)}.line.s2{stroke:var(--s2)}.line.s3{stroke:var(--s3)}.line.s4{stroke:var(--s4)}
.line.s5{stroke:var(--s5)}
.dot.s0,.band.s0{fill:var(--s0)}.dot.s1,.band.s1{fill:var(--s1)}.dot.s2{fill:var(--s2)}.dot.s4{fill:var(--s4)}
.thin.v0{stroke:var(--v0)}.thin.v1{stroke:var(--v1)}.thin.v2{stroke:var(--v2)}.thin.v3{stroke:var(--v3)}.thin.v4{stroke:var(--v4)}
.thin.v5{stroke:var(--v5);stroke-width:1.6;opacity:1}
.key{display:inline-block;width:1.1rem;height:.25rem;margin-right:.4rem;vertical-align:middle;background:var(--s0)}
.key.s1{background:var(--s1)}.key.s2{background:var(--s2)}.key.s3{background:var(--s3)}.key.s4{background:var(--s4)}
.key.v0{background:var(--v0)}.key.v2{background:var(--v2)}.key.v4{background:var(--v4)}.key.v5{background:var(--v5)}
.legend{font-size:.88rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem}caption{text-align:left;color:var(--soft)}
th,td{text-align:left;padding:.2rem .8rem .2rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
td{font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:minmax(6rem,auto) minmax(60%,1fr);gap:.2rem 1rem;margin:.4rem 0}
dt{color:var(--soft)}dd{margin:0}
.warnings{list-style:none;padding:0;display:grid;gap:.6rem}
.warnings li{background:var(--warn);border-left:.3rem solid var(--warned);padding:.6rem .8rem;border-radius:.3rem}
summary{cursor:pointer;color:var(--s0);margin-top:.4rem}
@media print{details{display:none}}
""".strip()
