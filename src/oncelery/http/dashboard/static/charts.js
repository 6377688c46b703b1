// Draws the numbers of a table, which is there for those who would rather read them: bars, one on top of the other.

const COLOURS = {
  completed: "--well", buried: "--danger", cancelled: "--line-strong", duplicates: "--accent",
  joined: "--accent", replayed: "--well", busy: "--line-strong", amended: "--amber", rejected: "--danger", refused: "--danger",
};
const CLOCK = "{HH}:{mm}";
const DAY = "\n{D} {MMM}";
const drawn = new Map();

export function drawCharts(anew = false) {
  if (!window.uPlot) return;
  for (const place of document.querySelectorAll("[data-chart]")) {
    const table = document.getElementById(place.dataset.chart);
    if (!table) continue;
    const figures = read(table);
    const before = drawn.get(place);
    if (before && anew !== true && before.figures.names.join() === figures.names.join()) {
      before.figures = figures;
      before.plot.setData(stacked(figures));
      continue;
    }
    before?.plot.destroy();
    const chart = { figures };
    drawn.set(place, chart);
    chart.plot = new window.uPlot(options(place, chart), stacked(figures), place);
    if (!before) new ResizeObserver(() => drawn.get(place).plot.setSize(size(place))).observe(place);
  }
}

function read(table) {
  const names = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);
  const rows = [...table.tBodies[0].rows];
  const times = rows.map((row) => Date.parse(row.cells[0].dataset.at) / 1000);
  const values = names.map((_, i) => rows.map((row) => Number(row.cells[i + 1].textContent)));
  return { names, times, values };
}

// The tallest is drawn first, and the others over it.
function stacked({ times, values }) {
  let sums = times.map(() => 0);
  const heights = values.map((column) => (sums = sums.map((sum, i) => sum + column[i])));
  return [times, ...heights.reverse()];
}

function size(place) {
  return { width: place.clientWidth, height: 210 };
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function options(place, chart) {
  const { names, times } = chart.figures;
  const last = names.length - 1;
  const step = times.length > 1 ? times[1] - times[0] : 60;
  const axis = { stroke: colour("--quiet"), font: "12px system-ui, sans-serif", ticks: { show: false } };
  const bars = window.uPlot.paths.bars({ size: [0.75, 26], align: 0 });
  return {
    ...size(place),
    cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
    scales: {
      x: { range: () => [chart.figures.times[0] - step / 2, chart.figures.times.at(-1) + step / 2] },
      y: { range: (_plot, _min, max) => [0, Math.max(max * 1.08, 5)] },
    },
    axes: [
      { ...axis, grid: { show: false }, space: 70, values: [[60, CLOCK, DAY, null, DAY, null, null, null, 1]] },
      { ...axis, size: 44, grid: { stroke: colour("--line"), width: 1 }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6] },
    ],
    series: [
      { value: (_plot, at) => (at ? window.uPlot.fmtDate("{D} {MMM} {HH}:{mm}")(new Date(at * 1000)) : "") },
      ...names.map((_, i) => ({
        label: names[last - i],
        fill: colour(COLOURS[names[last - i]] ?? "--quiet"),
        stroke: colour(COLOURS[names[last - i]] ?? "--quiet"),
        width: 0,
        paths: bars,
        points: { show: false },
        value: (_plot, _sum, _series, at) => (at == null ? sum(chart.figures.values[last - i]) : chart.figures.values[last - i][at]),
      })),
    ],
  };
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}
