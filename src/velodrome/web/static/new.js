// The form of a new race: checked by the server while it is filled in, with errors at their fields.
import { $, $$, post, setText } from "./common.js";

const form = $("#form");
const fields = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));

function show({ errors = {}, command, jobs, name }, all) {
  if (command) setText($("#command"), command);
  for (const input of $$("input, select, textarea", form)) {
    const text = errors[input.name] ?? "";
    const place = $(`#error-${input.name}`);
    if (!place || (text && !all && input === document.activeElement && input.dataset.touched === undefined)) continue;
    setText(place, text);
    place.hidden = !text;
    if (text) { input.setAttribute("aria-invalid", "true"); input.closest("details")?.setAttribute("open", ""); } else input.removeAttribute("aria-invalid");
  }
  setText($("#problem"), errors[""] ?? "");
  $("#problem").hidden = !errors[""];
  setText($("#jobs"), jobs ? `${jobs} job${jobs > 1 ? "s" : ""}${name ? `, in the race ${name}` : ""}` : "");
}

let waiting, number = 0;
async function check() {
  const mine = ++number;
  const answer = await post("/api/check", fields());
  if (mine !== number) return;
  if (answer.ok) show(answer); else show({ errors: { "": answer.error } });
}
form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(check, 350); });
form.addEventListener("change", (event) => { event.target.dataset.touched = ""; clearTimeout(waiting); check(); });

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearTimeout(waiting);
  number++;
  const button = $("#start");
  button.disabled = true;
  setText(button, "Starting …");
  const answer = await post("/api/races", fields());
  if (answer.ok) { location.href = answer.address; return; }
  button.disabled = false;
  setText(button, "Start race");
  show({ errors: { "": answer.error }, ...answer }, true);
  ($('[aria-invalid="true"]', form) ?? $("#problem")).scrollIntoView({ block: "center" });
  $('[aria-invalid="true"]', form)?.focus({ preventScroll: true });
});
check();
