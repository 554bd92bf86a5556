// What all pages share: requests that start something, numbers in words, buttons that copy, and the live connection.

export const $ = (selector, within = document) => within.querySelector(selector);
export const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
export const ABSENT = "–";

// A name as part of an address, its slashes kept.
export const path = (name) => name.split("/").map(encodeURIComponent).join("/");

export async function post(address, body) {
  const headers = { "X-Velodrome-CSRF": $('meta[name="csrf"]').content };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(address, { method: "POST", headers, body: body === undefined ? null : JSON.stringify(body) });
  } catch {
    return { ok: false, status: 0, error: "The server does not answer: is the command still running?" };
  }
  const text = await answer.text();
  let found = {};
  try { found = JSON.parse(text); } catch { found = { error: text.trim() }; }
  return { ...found, ok: answer.ok, status: answer.status };
}

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return ABSENT;
  if (Math.abs(value) >= 100) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

export function quality(value, metric) {
  if (value === null || value === undefined || !Number.isFinite(value)) return ABSENT;
  return metric === "accuracy" ? `${(100 * value).toFixed(2)} %` : String(Number(value.toPrecision(4)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return ABSENT;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
  return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
}

export function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A text whose words between backticks are code.
export const coded = (text) => text.split(/`([^`]+)`/).map((part, place) => (place % 2 ? element("code", {}, part) : part));

// The connection to what changes. The browser reconnects by itself and sends the id of the last message, so nothing is
// lost; if it gives up, as after an answer that is no stream, we begin anew. A browser has few connections for all of its
// tabs: to one tab too many the server says "poll" and closes, and the browser asks again in a few seconds.
export function follow(address, handlers) {
  const sign = $("#connection");
  let source, polled = false;
  const say = (text, lost) => {
    sign.hidden = !text;
    sign.classList.toggle("lost", Boolean(lost));
    setText(sign, text);
  };
  const open = () => {
    source = new EventSource(address);
    source.onopen = () => { polled = false; say("● live"); };
    source.addEventListener("poll", () => { polled = true; });
    source.onerror = () => {
      if (polled) { polled = false; return; }
      say("connection lost, trying again …", true);
      if (source.readyState === EventSource.CLOSED) setTimeout(open, 2000);
    };
    for (const [name, handler] of Object.entries(handlers)) source.addEventListener(name, handler);
  };
  open();
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
  return { close() { source.close(); say(""); } };
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = $("pre, code", button.parentElement).textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren($("pre, code", button.parentElement));
    button.textContent = "Press Ctrl-C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

// Boxes that select runs, and the button that compares them.
export function comparing() {
  const button = $("#compare"), chosen = new Set();
  const mark = () => {
    for (const box of $$('input[name="run"]')) box.checked = chosen.has(box.value);
    button.hidden = chosen.size < 2;
    setText(button, `Compare ${chosen.size} runs`);
  };
  document.addEventListener("change", (event) => {
    if (event.target.name !== "run") return;
    if (event.target.checked) chosen.add(event.target.value); else chosen.delete(event.target.value);
    mark();
  });
  button.addEventListener("click", () => {
    location.href = `/compare?${new URLSearchParams([...chosen].map((name) => ["run", name]))}`;
  });
  mark();
  return mark;
}
