// Curves of several runs against epochs, steps, time or examples.
import { $, number, setText } from "./common.js";
import { LinePlot } from "./plots.js";

const AXES = { epoch: "epoch", steps: "training steps", seconds: "training time (s)", examples: "examples trained on" };
if ($("#curves")) {
  const accuracy = new LinePlot($("#accuracy"), { legend: $("#legend"), zero: false, empty: "Loading …" });
  const loss = new LinePlot($("#loss"), { empty: "Loading …" });
  const answer = await fetch(`/api/compare${location.search}`);
  const runs = answer.ok ? (await answer.json()).runs : [];
  const draw = () => {
    const against = $("#against").value;
    const metric = runs.find((run) => run.metric)?.metric ?? "accuracy";
    setText($("#metric"), metric.charAt(0).toUpperCase() + metric.slice(1));
    accuracy.format = metric === "accuracy" ? (value) => `${Math.round(1000 * value) / 10} %` : number;
    for (const [plot, column] of [[accuracy, "value"], [loss, "loss"]]) {
      setText(plot.message, "These runs have no such figures");
      plot.set(runs.map((run, place) => {
        const kept = run.curve[against].map((x, at) => [x, run.curve[column][at]]).filter(([x]) => x !== null);
        return { name: run.name, place, dash: Math.floor(place / 6), x: kept.map(([x]) => x), y: kept.map(([, y]) => y) };
      }), AXES[against]);
    }
  };
  $("#against").addEventListener("change", draw);
  draw();
}
