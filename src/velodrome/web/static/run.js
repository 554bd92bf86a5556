// The page of a run: its timeline, curves, resources, wrong images and logs.
import { $, duration, element, follow, number, path, post, setText } from "./common.js";
import { LinePlot, Timeline } from "./plots.js";

const head = $("#run"), name = head.dataset.run, api = `/api/runs/${path(name)}`;
const mebibytes = (values) => values.map((value) => value / 2 ** 20);
const time = "seconds since the run began";
const empty = head.dataset.status === "running" ? "No data yet" : "This run recorded none";
const plots = {
  accuracy: new LinePlot($("#accuracy"), { x: "epoch", legend: $("#accuracy-legend"), zero: false, empty: "Appears after the first epoch" }),
  loss: new LinePlot($("#loss"), { x: "epoch", legend: $("#loss-legend"), empty: "Appears after the first epoch" }),
  cpu: new LinePlot($("#cpu"), { x: time, empty, legend: $("#nodes-legend") }),
  memory: new LinePlot($("#memory"), { x: time, empty }),
  network: new LinePlot($("#network"), { x: time, empty }),
  pace: new LinePlot($("#pace"), { x: time, empty }),
  staleness: new LinePlot($("#staleness"), { x: time, empty, legend: $("#staleness-legend") }),
};
const timeline = new Timeline($("#timeline"), $("#phases"));

function parts(history, metric) {
  const found = [];
  for (const [place, part] of ["train", "validation"].entries()) {
    const y = history[`${part}_${metric}`];
    if (y?.some((value) => value !== null)) found.push({ name: part, place, dash: place, x: history.epoch, y });
  }
  return found;
}

function showShares(shares) {
  if (!shares.length) return;
  $("#shares-card").hidden = false;
  const cell = (value) => element("td", { class: "number" }, `${(100 * value).toFixed(1)} %`);
  $("#shares tbody").replaceChildren(...shares.map((one) => {
    const ns = "http://www.w3.org/2000/svg", bar = document.createElementNS(ns, "svg");
    bar.setAttribute("viewBox", "0 0 100 10"); bar.setAttribute("preserveAspectRatio", "none"); bar.setAttribute("class", "share-bar"); bar.setAttribute("aria-hidden", "true");
    let left = 0;
    for (const [part, place] of [["compute", 2], ["wait", 1], ["communicate", 0]]) {
      const piece = document.createElementNS(ns, "rect");
      for (const [key, value] of Object.entries({ x: 100 * left, y: 0, width: 100 * one[part], height: 10, fill: `var(--c${place})` })) piece.setAttribute(key, value);
      left += one[part];
      bar.append(piece);
    }
    return element("tr", {}, element("th", { scope: "row" }, one.process), element("td", { class: "bar-cell" }, bar), cell(one.compute), cell(one.wait), cell(one.communicate));
  }));
}

const MARKS = { error: "✕", lost: "✕", fault: "↯", warning: "!", checkpoint: "◆" };
function show(view) {
  const metric = view.metric ?? "accuracy";
  const percent = (value) => `${Math.round(1000 * value) / 10} %`;
  plots.accuracy.format = metric === "accuracy" ? percent : number;
  let accuracy = parts(view.history, metric), loss = parts(view.history, "loss");
  if (!view.history.epoch) {
    accuracy = [{ name: "validation", place: 1, dash: 1, x: view.curve.epoch, y: view.curve.value }];
    loss = [{ name: "train", place: 0, dash: 0, x: view.curve.epoch, y: view.curve.loss }];
    setText($("#epochs"), `${view.epoch}/${view.epochs ?? "?"}`);
    setText($("#rate"), number(view.pace.rate.at(-1)));
    setText($("#total"), duration(view.seconds));
  }
  plots.accuracy.set(accuracy);
  plots.loss.set(loss);
  const lines = (column) => view.nodes.map((node, place) => ({ name: node.process, place, dash: Math.floor(place / 6), x: node.seconds, y: column === "cpu" ? node.cpu : mebibytes(node[column]) }));
  plots.cpu.set(lines("cpu"));
  plots.memory.set(lines("memory"));
  const hosts = [...new Map(view.nodes.map((node) => [node.host, node])).values()];
  plots.network.set(hosts.map((node, place) => ({ name: node.host, place, dash: 0, x: node.seconds, y: mebibytes(node.network) })));
  plots.pace.set([{ name: "examples/s", place: 0, dash: 0, x: view.pace.seconds, y: view.pace.rate }]);
  $("#staleness-card").hidden = !view.staleness;
  if (view.staleness) plots.staleness.set(["mean", "max"].map((which, place) => ({ name: which, place, dash: place, x: view.staleness.seconds, y: view.staleness[which] })));
  showShares(view.shares);
  timeline.set(view.phases, view.marks);
  const told = view.marks.filter((mark) => mark.kind !== "checkpoint");
  $("#marks").replaceChildren(...told.map((mark) => element("li", { class: mark.kind }, element("b", {}, `${MARKS[mark.kind]} ${mark.seconds.toFixed(1)}${mark.end === null ? "" : ` to ${mark.end.toFixed(1)}`} s`), ` ${mark.process ? `${mark.process}: ` : ""}${mark.text}`)));
  setText($("#events"), `${view.events.toLocaleString("en")} events${view.every > 1 ? `; of the heartbeats every ${view.every}th is drawn` : ""}.`);
}

async function load() {
  try {
    const answer = await fetch(`${api}/view`);
    if (answer.ok) show(await answer.json());
  } catch { /* the connection's sign tells */ }
}

async function showWrong() {
  if (!$("#wrong")) return;
  const answer = await fetch(`${api}/wrong`);
  const found = answer.ok ? await answer.json() : { images: [], reason: "the server did not answer" };
  if (found.reason) { setText($("#wrong-note"), `They cannot be shown: ${found.reason}.`); return; }
  setText($("#wrong-note"), `${found.count.toLocaleString("en")} of ${found.total.toLocaleString("en")} test images were classified wrongly${found.images.length < found.count ? `; ${found.images.length} of them, evenly spread` : ""}.`);
  if ($("#predictions")) $("#predictions").hidden = found.images.every((one) => one.predicted !== null);
  $("#wrong").replaceChildren(...found.images.map((one) => element("li", {}, element("img", { src: one.address, alt: `Test image ${one.place}`, loading: "lazy", width: "84", height: "84" }),
    element("span", {}, "predicted ", element("b", {}, one.predicted ?? "?")), element("span", {}, "true ", element("b", {}, one.class)))));
}

async function showLogs(event) {
  event?.preventDefault();
  if (!$("#log")) return;
  const answer = await fetch(`${api}/logs?${new URLSearchParams(new FormData($("#log-form")))}`);
  if (!answer.ok) return;
  const found = await answer.json();
  setText($("#log-count"), found.total > found.lines.length ? `the last ${found.lines.length} of ${found.total.toLocaleString("en")} lines` : `${found.total} line${found.total === 1 ? "" : "s"}`);
  setText($("#log"), found.lines.map((line) => `${line.process}${line.number ? `:${line.number}` : ""}  ${line.text}`).join("\n") || ($("#log-form [name=q]").value ? "No line contains that." : "The logs are empty: nothing was printed."));
  $("#log").scrollTop = $("#log").scrollHeight;
}
$("#log-form")?.addEventListener("submit", showLogs);
$("#log-form")?.addEventListener("change", showLogs);

for (const action of ["stop", "resume"]) {
  $(`#${action}`)?.addEventListener("click", async (event) => {
    event.target.disabled = true;
    const answer = await post(`${api}/${action}`);
    event.target.disabled = false;
    $("#problem").hidden = answer.ok;
    setText($("#problem"), answer.ok ? "" : answer.error);
    if (answer.ok && action === "resume") location.reload();
  });
}
const PAGES = { tensorboard: ["TensorBoard is starting …", "TensorBoard shows this run at "], serve: ["The page of the model is starting; a model that was not used before is exported first …", "The model answers at "] };
for (const [action, [starting, shows]] of Object.entries(PAGES)) {
  $(`#${action}`)?.addEventListener("click", async (event) => {
    event.target.disabled = true;
    $("#board").hidden = false;
    setText($("#board"), starting);
    const answer = await post(`${api}/${action}`);
    event.target.disabled = false;
    if (answer.ok) $("#board").replaceChildren(shows, element("a", { href: answer.address, target: "_blank", rel: "noopener" }, answer.address));
    else setText($("#board"), answer.error);
  });
}
$("#predictions")?.addEventListener("click", async (event) => {
  event.target.disabled = true;
  setText(event.target, "Exporting the model …");
  const answer = await post(`${api}/export`);
  event.target.disabled = false;
  setText(event.target, "Show predictions");
  if (answer.ok) showWrong(); else setText($("#wrong-note"), answer.error);
});

load();
showWrong();
showLogs();
if (head.dataset.status === "running") {
  let last = 0, waiting;
  const again = () => { last = Date.now(); waiting = undefined; load(); showLogs(); };
  follow(`${api}/stream`, {
    state(event) {
      const state = JSON.parse(event.data);
      if (state.race && state.race.status !== "running") { location.reload(); return; }
      waiting ??= setTimeout(again, Math.max(0, 2000 - (Date.now() - last)));
    },
  });
}
