// What a model page shares: the models, their answers as bars, and the interface that it asks.
"use strict";
const page = { models: [], ready: [] };
const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

async function ask(address, options) {
  let answer;
  try {
    answer = await fetch(address, options);
  } catch {
    throw new Error("The server does not answer: is it still running?");
  }
  const text = await answer.text();
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    content = { error: text.trim() };
  }
  if (!answer.ok) throw new Error(content.error || `The server answered ${answer.status}.`);
  return content;
}

function percent(value) {
  if (value > 0 && value < 0.001) return "< 0.1 %";
  return `${(100 * value).toFixed(1)} %`;
}

function number(value) {
  return Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(3) : Number(value.toPrecision(5)).toString();
}

// The answer of one model: the best first in large letters, then a bar for each class, or numbers with names.
function answerCard(model, found, pick) {
  const card = element("section", { class: "answer" });
  card.setAttribute("aria-label", `Answer of ${model.name}`);
  card.append(element("h3", {}, model.name));
  const first = found.predictions[0];
  if (first && "value" in first) {
    for (const one of found.predictions) {
      card.append(element("p", { class: "top" }, number(one.value)), element("p", { class: "soft" }, one.name));
    }
  } else if (first) {
    card.append(element("p", { class: "top" }, first.class));
    const list = element("ol", { class: "bars" });
    for (const one of found.predictions) {
      const fill = element("div", { class: "fill" });
      fill.style.width = `${100 * one.probability}%`;
      const label = pick ? element("button", { class: "link label", type: "button", title: `Append ${one.class}`, onclick: () => pick(one.class) }, one.class)
        : element("span", { class: "label", title: one.class }, one.class);
      const track = element("div", { class: "track" }, fill);
      track.setAttribute("aria-hidden", "true");
      list.append(element("li", {}, label, track, element("span", { class: "value" }, percent(one.probability))));
    }
    card.append(list);
  }
  card.append(element("p", { class: "latency" }, `${found.milliseconds.toFixed(1)} ms on the server`));
  return card;
}

function problemCard(model, error) {
  return element("section", { class: "answer" }, element("h3", {}, model.name), element("p", { class: "wrong" }, error.message));
}

// Ask several models the same and show what they say side by side; an older question's answers never replace newer ones.
const asked = new WeakMap();
async function showAnswers(place, models, question, pick) {
  const number = (asked.get(place) || 0) + 1;
  asked.set(place, number);
  const settled = await Promise.all(models.map(async (model) => {
    try {
      const found = await question(model);
      return { found, card: answerCard(model, found, pick) };
    } catch (error) {
      return { error, card: problemCard(model, error) };
    }
  }));
  if (asked.get(place) !== number) return null;
  place.replaceChildren(...settled.map((one) => one.card));
  return settled;
}

function describe() {
  const ready = page.models.filter((model) => model.status === "ready");
  const parts = ready.map((model) => {
    const metric = model.test.accuracy !== undefined ? `, ${percent(model.test.accuracy)} of the test set right` : "";
    return `${model.model} (${model.engine}) trained on ${model.dataset}${metric}`;
  });
  const waiting = page.models.filter((model) => model.status === "preparing").map((model) => model.name);
  if (waiting.length) parts.push(`preparing ${waiting.join(", ")}: this takes a few seconds, once…`);
  $("about").textContent = parts.join(" · ");
  $("problems").replaceChildren(...page.models.filter((model) => model.status === "failed")
    .map((model) => element("p", { class: "message" }, `${model.name}: ${model.problem}`)));
}

async function loadModels() {
  for (;;) {
    try {
      page.models = (await ask("/api/models")).models;
    } catch (error) {
      $("problems").replaceChildren(element("p", { class: "message" }, error.message));
      return;
    }
    describe();
    const ready = page.models.filter((model) => model.status === "ready");
    if (ready.length > page.ready.length) {
      page.ready = ready;
      document.dispatchEvent(new CustomEvent("models"));
    }
    if (!page.models.some((model) => model.status === "preparing")) return;
    await new Promise((done) => setTimeout(done, 1000));
  }
}

document.addEventListener("DOMContentLoaded", () => {
  loadModels();
  $("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText($("curl").textContent);
      $("copy").textContent = "Copied";
    } catch {
      getSelection().selectAllChildren($("curl"));
    }
  });
});
