// The list of races and runs: replaced when it changes, and runs selected for comparison.
import { $, comparing, follow } from "./common.js";

const table = $("#rows"), mark = comparing();

// What the page was sent with is not fetched again, unless it was only a part.
let first = table?.dataset.partial === undefined;
follow(`/api/stream${location.search}`, {
  async changed() {
    if (first) { first = false; return; }
    if (!table?.tHead) { location.reload(); return; }
    const query = new URLSearchParams(location.search);
    query.set("part", "rows");
    const answer = await fetch(`/?${query}`);
    if (!answer.ok) return;
    const made = document.createElement("template");
    made.innerHTML = `<table>${await answer.text()}</table>`;
    const focused = document.activeElement?.closest("tr")?.dataset.run;
    const what = document.activeElement?.tagName;
    for (const body of [...table.tBodies]) body.remove();
    table.append(...made.content.firstElementChild.tBodies);
    if (focused) $(`tr[data-run="${CSS.escape(focused)}"] ${what === "INPUT" ? "input" : "a"}`, table)?.focus({ preventScroll: true });
    mark();
  },
});
