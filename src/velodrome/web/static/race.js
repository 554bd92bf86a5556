// The page of a race while it runs: each message has the whole of what changed, so that it can be drawn at once.
import { $, ABSENT, coded, comparing, duration, element, follow, number, path, post, quality, setText } from "./common.js";
import { IntervalPlot, LinePlot, looks } from "./plots.js";

const name = $("#race").dataset.race;
comparing();
const jobs = new Map();
let race, standing = { rows: [], verdicts: [] };
const percent = (value) => `${Number((100 * value).toFixed(1))} %`;
const mebibytes = (values) => values.map((value) => value / 2 ** 20);

const accuracy = new LinePlot($("#accuracy"), { x: "epoch", legend: $("#accuracy-legend"), zero: false });
const pace = new LinePlot($("#pace"), { x: "seconds since the run began", legend: $("#pace-legend"), empty: "Appears while a run trains" });
const speedup = new IntervalPlot($("#speedup"));
const resources = {
  cpu: new LinePlot($("#cpu"), { title: "CPU, % of a core", narrow: true, legend: $("#nodes-legend"), empty: "Appears while a run trains" }),
  memory: new LinePlot($("#memory"), { title: "Memory, MiB", narrow: true, empty: "" }),
  network: new LinePlot($("#network"), { title: "Network, MiB/s", narrow: true, empty: "" }),
};
const MOST_LINES = 24;

function row(job) {
  let found = $(`tr[data-job="${CSS.escape(job)}"]`);
  if (!found) {
    found = $("#job").content.firstElementChild.cloneNode(true);
    found.dataset.job = job;
    $("progress", found).setAttribute("aria-label", `Progress of ${job}`);
    const link = $("a", found);
    link.href = `/runs/${path(name)}/${path(job)}`;
    link.textContent = job;
    $("#jobs tbody").append(found);
  }
  if (!$("input", found)) $(".pick", found).append(element("input", { type: "checkbox", name: "run", value: `${name}/${job}`, "aria-label": `Select ${job} for comparison` }));
  if (!$("a", found)) {
    const head = $("th", found);
    head.firstChild.replaceWith(element("a", { href: `/runs/${path(name)}/${path(job)}` }, job));
  }
  return found;
}

function showJob(job) {
  const found = row(job.name);
  const cell = (which, text) => setText($(`[data-cell="${which}"]`, found), text);
  const status = $('[data-cell="status"]', found);
  status.className = `status ${job.status}`;
  setText(status, job.status === "running" && job.phase ? `running: ${job.phase}` : job.status);
  $("progress", found).value = job.done;
  cell("epoch", `${job.epoch}/${job.epochs ?? "?"}`);
  cell("value", quality(job.value, job.metric));
  cell("rate", number(job.rate));
  cell("seconds", duration(job.seconds));
  cell("error", job.error ?? (job.warnings ? `${job.warnings} warning${job.warnings > 1 ? "s" : ""}` : ""));
}

function showRace() {
  const status = $("#status");
  status.className = `status ${race.status}`;
  setText(status, race.status);
  const { finished = 0, failed = 0, running = 0 } = race.counts;
  setText($("#summary"), [`${finished} of ${race.jobs} jobs finished`, running ? `${running} running` : "", failed ? `${failed} failed` : "", race.remaining ? race.remaining.text : ""].filter(Boolean).join(", "));
  if ($("#stop")) $("#stop").hidden = !race.running;
  if ($("#resume")) $("#resume").hidden = race.running || race.status === "finished";
}

function showVerdicts() {
  $("#problem").hidden = !standing.problem;
  setText($("#problem"), standing.problem ?? "");
  const text = JSON.stringify(standing.verdicts);
  if ($("#verdicts").dataset.shown === text) return;
  $("#verdicts").dataset.shown = text;
  $("#verdicts").replaceChildren(...standing.verdicts.map((one) => element("section", { class: `verdict ${one.decision}${one.decided ? " decided" : ""}` },
    element("h2", {}, "Verdict ", element("span", { class: "soft" }, `${one.task ? `for ${one.task} ` : ""}by ${one.objective}`)),
    element("p", { class: "answer" }, one.verdict.charAt(0).toUpperCase() + one.verdict.slice(1)),
    ...(one.why ? [element("p", {}, element("b", {}, "Why"), " ", ...coded(one.why))] : []),
    element("p", {}, element("b", {}, "Next"), " ", ...coded(one.next)),
    ...(one.caveats.length ? [element("ul", { class: "caveats" }, ...one.caveats.map((caveat) => element("li", {}, ...coded(caveat))))] : []))));
}

function showConfigurations(look) {
  const rows = standing.rows;
  $("#configurations").hidden = !rows.length;
  const end = (value) => (value > 100 ? "over 100" : value.toFixed(2));
  const times = (one, value, interval) => value === null ? ABSENT : element("span", {}, `${value.toFixed(2)}×`, element("small", {}, one.suspect ?? "", one.suspect ? ", " : "", interval ? `${end(interval[0])} to ${end(interval[1])}` : one.runs < 2 ? "one run" : "baseline"));
  const cell = (content) => element("td", { class: "number" }, content);
  const best = Math.max(...rows.map((one) => one.rate ?? 0));
  $("#configurations tbody").replaceChildren(...rows.map((one) => {
    const rate = cell(element("span", {}, number(one.rate), element("small", {}, one.rate_range && one.runs > 1 ? `${number(one.rate_range[0])} to ${number(one.rate_range[1])}` : "")));
    if (one.rate === best && best) rate.classList.add("best");
    return element("tr", {}, element("th", { scope: "row", class: "name" }, one.name), cell(one.failed ? `${one.runs} (${one.failed} failed)` : String(one.runs)),
      cell(quality(one.accuracy, "accuracy")), rate, cell(times(one, one.speedup, one.speedup_interval)), cell(times(one, one.scaling, one.scaling_interval)), cell(duration(one.train_seconds)));
  }));
  speedup.set([...rows].sort((a, b) => a.label.localeCompare(b.label) || a.workers - b.workers).map((one) => ({ name: `${one.name}${one.single ? " (baseline)" : ""}`, place: look(one).place, value: one.speedup, interval: one.single ? [1, 1] : one.speedup_interval })));
}

function draw() {
  const all = [...jobs.values()].sort((a, b) => a.name.localeCompare(b.name));
  const look = looks([...all, ...standing.rows], race);
  const running = all.filter((job) => job.status === "running");
  const shown = all.length > MOST_LINES ? [...running, ...all.filter((job) => job.status !== "running")].slice(0, MOST_LINES) : all;
  const against = $("#against").value;
  const metric = all.find((job) => job.metric)?.metric ?? "accuracy";
  setText($("#metric"), metric.charAt(0).toUpperCase() + metric.slice(1));
  accuracy.format = metric === "accuracy" ? percent : number;
  const lines = (job) => ({ name: job.name, group: `${job.label}, ${job.workers} worker${job.workers === 1 ? "" : "s"}`, ...look(job) });
  accuracy.set(shown.map((job) => ({ ...lines(job), x: job.curve[against], y: job.curve.value })), against === "epoch" ? "epoch" : "training time (s)");
  pace.set(shown.filter((job) => job.pace.seconds.length).map((job) => ({ ...lines(job), x: job.pace.seconds, y: job.pace.rate })));
  showResources(all, running);
  const done = all.reduce((sum, job) => sum + (job.status === "running" ? job.done : 1), 0);
  $("#whole").value = race?.jobs ? Math.min(1, done / race.jobs) : 0;
  showConfigurations(look);
}

function showResources(all, running) {
  const watched = all.filter((job) => job.nodes.length);
  const select = $("#which");
  const names = watched.map((job) => job.name);
  if (JSON.stringify(names) !== select.dataset.names) {
    const chosen = select.value;
    select.dataset.names = JSON.stringify(names);
    select.replaceChildren(element("option", { value: "" }, "the newest run"), ...names.map((one) => element("option", { value: one }, one)));
    select.value = names.includes(chosen) ? chosen : "";
  }
  const job = select.value ? jobs.get(select.value) : running.find((one) => one.nodes.length) ?? watched.at(-1);
  const nodes = job?.nodes ?? [];
  const series = (column) => nodes.map((node, place) => ({ name: node.process, place, dash: Math.floor(place / 6), x: node.seconds, y: column === "cpu" ? node.cpu : mebibytes(node[column]) }));
  const hosts = [...new Map(nodes.map((node) => [node.host, node])).values()];
  resources.cpu.set(series("cpu"));
  resources.memory.set(series("memory"));
  resources.network.set(hosts.map((node, place) => ({ name: node.host, place, dash: 0, x: node.seconds, y: mebibytes(node.network) })));
}

let asked = false;
function later() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; draw(); });
}

follow(`/api/races/${path(name)}/stream`, {
  state(event) {
    const state = JSON.parse(event.data);
    if (state.whole) jobs.clear();
    for (const job of state.jobs ?? []) { jobs.set(job.name, job); showJob(job); }
    if (state.race) { race = state.race; showRace(); }
    if (state.standing) { standing = state.standing; showVerdicts(); }
    document.documentElement.dataset.version = event.lastEventId;
    later();
  },
});
for (const select of [$("#against"), $("#which")]) select.addEventListener("change", draw);

for (const action of ["stop", "resume"]) {
  $(`#${action}`)?.addEventListener("click", async (event) => {
    const button = event.target;
    button.disabled = true;
    const answer = await post(`/api/races/${path(name)}/${action}`);
    button.disabled = false;
    $("#problem").hidden = answer.ok;
    setText($("#problem"), answer.ok ? "" : answer.error);
  });
}
