"use strict";

const report = JSON.parse(document.getElementById("data").textContent);
const hidden = report.experiments.map(() => new Set());
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const touch = window.matchMedia("(pointer: coarse)").matches;
const form = document.querySelector(".controls form");
const GAP = "\u202f";

// Plotly reads a little HTML in its texts; names from files must stay text.
const literal = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const digits = (value, most = 4) => String(Number(value.toPrecision(most)));
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const chosen = (name) => (form ? new FormData(form).get(name) : "linear");

function amount(value) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return digits(value / size, 3) + GAP + unit;
  }
  return digits(value, 3);
}

function see(color, opacity) {
  const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${opacity})`;
}

function axis(title, type, more) {
  const line = themed("--line");
  return {
    title: { text: title, standoff: 6, font: { size: 12, color: themed("--soft") } },
    type,
    automargin: true,
    gridcolor: line,
    linecolor: line,
    zeroline: false,
    nticks: 5,
    ...more,
  };
}

function layoutOf(xaxis, yaxis) {
  return {
    xaxis,
    yaxis,
    uirevision: xaxis.type + yaxis.type, // a reader's zoom stays until the scale changes
    showlegend: false,
    hovermode: "closest",
    dragmode: touch ? false : "zoom",
    margin: { l: 44, r: 8, t: 6, b: 36 },
    paper_bgcolor: themed("--paper"),
    plot_bgcolor: themed("--paper"),
    font: { family: "inherit", size: 11, color: themed("--soft") },
    hoverlabel: { bgcolor: themed("--tint"), bordercolor: themed("--line"), font: { color: themed("--ink") } },
  };
}

function band(style, x, low, high) {
  return {
    x: [...x, ...x.slice().reverse()],
    y: [...high, ...low.slice().reverse()],
    type: "scatter",
    mode: "lines",
    fill: "toself",
    fillcolor: see(style.color, 0.18),
    line: { width: 0 },
    hoverinfo: "skip",
  };
}

function line(style, x, y, text, more) {
  return {
    x,
    y,
    text,
    type: "scatter",
    mode: "lines",
    hovertemplate: "%{text}<extra></extra>",
    line: { color: style.color, dash: style.dash, width: 2 },
    ...more,
  };
}

function cross(style, x, y, text) {
  const marker = { symbol: "x-thin", size: 9, line: { color: style.color, width: 2 } };
  return line(style, [x], [y], [`${text}<br>diverged`], { mode: "markers", marker, cliponaxis: false });
}

function seedWords(curve, low, high) {
  return curve.seeds > 1 ? `<br>${curve.seeds} seeds: ${low} … ${high}` : "";
}

// On a logarithmic axis F* is infinitely far below: what reached it has no point there, and bands end at `floor`.
function objectiveTraces(style, problem, curve, measure, scales, floor) {
  const held = curve[measure];
  const kept = held.x.map((_, k) => k).filter((k) => (scales.x === "linear" || held.x[k] > 0) &&
    (scales.y === "linear" || held.mean[k] > 0));
  const pick = (values) => kept.map((k) => values[k]);
  const shown = (gap) => (scales.y === "log" ? Math.max(gap, floor) : problem.best + gap);
  const unit = measure === "samples" ? (x) => `${amount(x)} samples` : (x) => `${digits(x, 3)} s`;
  const text = kept.map((k) => `<b>${literal(style.label)}</b><br>${unit(held.x[k])}` +
    `<br>F = ${digits(problem.best + held.mean[k])}, F − F* = ${digits(held.mean[k], 3)}` +
    seedWords(curve, digits(problem.best + held.low[k]), digits(problem.best + held.high[k])));
  const x = pick(held.x);
  const y = pick(held.mean).map(shown);
  const traces = [line(style, x, y, text)];
  if (curve.seeds > 1) traces.unshift(band(style, x, pick(held.low).map(shown), pick(held.high).map(shown)));
  if (curve.diverged && x.length) traces.push(cross(style, x.at(-1), Math.min(y.at(-1), shown(problem.top)), text.at(-1)));
  return traces;
}

function objectivePanel(experiment, problem, measure, isHidden) {
  const scales = { x: chosen("x"), y: chosen("y") };
  const means = problem.curves.flatMap((curve) => curve[measure].mean);
  const floor = Math.min(problem.top, ...means.filter((gap) => gap > 0));
  const traces = problem.curves.filter((curve) => !isHidden(curve)).flatMap((curve) =>
    objectiveTraces(experiment.methods[curve.method], problem, curve, measure, scales, floor));
  const margin = 0.05 * problem.top;
  const span = problem.top <= 0 ? {} : scales.y === "log"
    ? { range: [Math.log10(floor) - 0.1, Math.log10(problem.top) + 0.1] }
    : { range: [problem.best - margin, problem.best + problem.top + margin] };
  const ticks = { tickformat: measure === "samples" ? "~s" : "~g" };
  const name = scales.y === "log" ? "F(x) − F*" : "F(x)";
  return [traces, layoutOf(axis(measure, scales.x, ticks), axis(name, scales.y, { tickformat: "~g", ...span }))];
}

function ratePanel(experiment, problem, isHidden) {
  const traces = problem.curves.filter((curve) => !isHidden(curve)).flatMap((curve) => {
    const style = experiment.methods[curve.method];
    const { x, mean, low, high } = curve.rate;
    const text = x.map((inverse, k) => `<b>${literal(style.label)}</b><br>ε = ${digits(1 / inverse, 3)}` +
      `<br>${amount(mean[k])} samples${seedWords(curve, amount(low[k]), amount(high[k]))}`);
    const points = line(style, x, mean, text, { mode: "lines+markers", marker: { size: 6, color: style.color } });
    return curve.seeds > 1 ? [band(style, x, low, high), points] : [points];
  });
  const [across, up] = [axis("1/ε", "log", { tickformat: "~g" }), axis("samples", "log", { tickformat: "~s" })];
  return [traces, layoutOf(across, up)];
}

function draw(panel) {
  const at = Number(panel.dataset.experiment);
  const experiment = report.experiments[at];
  const problem = experiment.problems[Number(panel.dataset.problem)];
  const isHidden = (curve) => hidden[at].has(curve.method);
  const measure = panel.dataset.measure;
  const [traces, layout] = measure === "rate"
    ? ratePanel(experiment, problem, isHidden)
    : objectivePanel(experiment, problem, measure, isHidden);
  Plotly.react(panel.querySelector(".plot"), traces, layout, { displayModeBar: false, responsive: true });
}

function drawAll() {
  const against = chosen("against");
  for (const row of document.querySelectorAll(".panels")) {
    row.hidden = row.dataset.measure !== "rate" && against !== "both" && against !== row.dataset.measure;
    if (!row.hidden) row.querySelectorAll(".panel").forEach(draw);
  }
}

function toggle(button) {
  const methods = hidden[Number(button.dataset.experiment)];
  const method = Number(button.dataset.method);
  const wasHidden = methods.delete(method);
  if (!wasHidden) methods.add(method);
  button.setAttribute("aria-pressed", String(wasHidden));
  document.querySelectorAll(`.panels:not([hidden]) .panel[data-experiment="${button.dataset.experiment}"]`).forEach(draw);
}

// Eight panels side by side want a wide screen; on a narrow one four are enough to begin with.
if (form && window.matchMedia("(max-width: 48rem)").matches) form.elements.against.value = "samples";
if (form) form.addEventListener("change", drawAll);
document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => toggle(button)));
dark.addEventListener("change", drawAll);
drawAll();
