// The inputs of a model page: pictures that are sent, drawn or picked; words; the columns of a table.
"use strict";

// -- pictures

const pictures = { models: [], queue: [], current: null, drawn: null };

function send(address, model, blob, name) {
  const form = new FormData();
  form.append("file", blob, name);
  return ask(`${address}?model=${encodeURIComponent(model.name)}`, { method: "POST", body: form });
}

async function showPicture(one) {
  pictures.current = one;
  const preview = $("preview");
  preview.src = one.address;
  preview.alt = one.name;
  preview.classList.toggle("photo", one.photo);
  $("caption").textContent = one.name;
  $("shown").hidden = false;
  // A file that is not a picture cannot be shown; its error says why.
  preview.parentElement.hidden = false;
  preview.onerror = () => { preview.parentElement.hidden = true; };
  clearMap();
  for (const button of document.querySelectorAll(".thumbs button")) button.setAttribute("aria-pressed", String(button.picture === one));
  const settled = await showAnswers($("pictures").querySelector("[data-answers]"), pictures.models, (model) => send("/api/predict", model, one.blob, one.name));
  if (!settled) return;
  // On a phone the answers are further down; a drawing is answered beside it, and may continue.
  if (!one.drawn && matchMedia("(max-width: 760px)").matches) $("shown").scrollIntoView({ block: "start" });
  const best = settled.find((each) => each.found);
  if (best && one.label && best.found.predictions[0].class) one.label.textContent = best.found.predictions[0].class;
  $("said").textContent = best && one.drawn && best.found.predictions[0].class ? `${best.found.predictions[0].class}, ${percent(best.found.predictions[0].probability)}` : "";
  $("look").hidden = !best || !pictures.models.some((model) => model.task === "classification");
  if (!$("look").hidden && $("looked").checked) drawMap();
}

function clearMap() {
  const canvas = $("map");
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
}

async function drawMap() {
  const one = pictures.current, model = pictures.models.find((each) => each.task === "classification");
  clearMap();
  if (!one || !model) return;
  let found;
  try {
    found = await send("/api/explain", model, one.blob, one.name);
  } catch (error) {
    $("caption").textContent = error.message;
    return;
  }
  if (pictures.current !== one || !$("looked").checked) return;
  const rows = found.map, canvas = $("map");
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const context = canvas.getContext("2d"), pixels = context.createImageData(canvas.width, canvas.height);
  const largest = Math.max(1e-6, ...rows.flat().map(Math.abs));
  rows.flat().forEach((value, place) => {
    const strength = Math.abs(value) / largest, colour = value > 0 ? [213, 94, 0] : [0, 114, 178];
    pixels.data.set([...colour, Math.round(200 * strength)], 4 * place);
  });
  context.putImageData(pixels, 0, 0);
  const share = model.picture.width / model.picture.height;
  canvas.style.objectFit = Math.abs(share - 1) < 0.01 && !one.photo ? "contain" : "fill";
  $("caption").textContent = `${one.name}: orange supports ${found.class}, blue speaks against it (${model.name})`;
}

function addPhotos(files) {
  for (const file of files) {
    const one = { name: file.name || "pasted picture", blob: file, address: URL.createObjectURL(file), photo: true };
    one.label = element("span", {}, "…");
    const button = element("button", { type: "button", title: one.name, onclick: () => showPicture(one) }, element("img", { src: one.address, alt: one.name }), one.label);
    button.picture = one;
    pictures.queue.push(one);
    $("queue").append(element("li", {}, button));
  }
  $("queue").hidden = pictures.queue.length < 2;
  if (files.length) answerQueue();
}

let answering = Promise.resolve();
function answerQueue() {
  answering = answering.then(async () => {
    for (const one of pictures.queue.filter((each) => !each.done)) {
      one.done = true;
      await showPicture(one);
      if (one.label.textContent === "…") one.label.textContent = "not read";
    }
  });
}

function setUpPictures(models) {
  const first = pictures.models.length === 0;
  pictures.models = models;
  $("pictures").hidden = false;
  if (!first) {
    if (pictures.current) showPicture(pictures.current);
    return;
  }
  $("files").addEventListener("change", (event) => {
    addPhotos([...event.target.files]);
    event.target.value = "";
  });
  const drop = $("drop");
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || drop.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    addPhotos([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => addPhotos([...event.clipboardData.files]));
  $("looked").addEventListener("change", () => $("looked").checked ? drawMap() : clearMap());
  const withTests = models.find((model) => model.picture.examples.length);
  if (withTests) showTests(withTests);
  const drawable = models.find((model) => model.picture.drawn);
  if (drawable) setUpDrawing(drawable.picture);
}

// Places of so many examples, of each class in turn: a test set may be sorted by class.
function varied(labels, most) {
  const classes = new Map();
  labels.forEach((label, index) => classes.set(label, [...(classes.get(label) || []), index]));
  const found = [], places = [...classes.values()];
  for (let round = 0; found.length < Math.min(most, labels.length); round++) found.push(...places.flatMap((one) => one[round] ?? []));
  return found.slice(0, most);
}

function showTests(model) {
  $("tests").hidden = false;
  $("examples").append(...varied(model.picture.examples, 40).map((index) => {
    const label = model.picture.examples[index];
    const address = `/api/example?model=${encodeURIComponent(model.name)}&index=${index}`;
    const name = `test picture ${index + 1}${label ? `: ${label}` : ""}`;
    const image = element("img", { src: address, alt: name, loading: "lazy", width: 56, height: 56 });
    const button = element("button", { type: "button", title: name }, image, element("span", {}, label));
    const one = { name, address, photo: false };
    button.picture = one;
    button.addEventListener("click", async () => {
      one.blob = one.blob || await (await fetch(address)).blob();
      showPicture(one);
    });
    return element("li", {}, button);
  }));
}

// Strokes on a canvas; what is sent is cut out, scaled and centred as the pictures of the data set are.
function setUpDrawing(picture) {
  $("draw").hidden = false;
  const canvas = $("canvas"), context = canvas.getContext("2d", { willReadFrequently: true });
  const paper = picture.drawn.dark ? "#000" : "#fff", ink = picture.drawn.dark ? "#fff" : "#000";
  canvas.classList.toggle("light", !picture.drawn.dark);
  const clear = () => {
    context.fillStyle = paper;
    context.fillRect(0, 0, canvas.width, canvas.height);
  };
  clear();
  Object.assign(context, { lineWidth: 22, lineCap: "round", lineJoin: "round", strokeStyle: ink });
  let last = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height];
  };
  const stroke = (to) => {
    context.beginPath();
    context.moveTo(...last);
    context.lineTo(...to);
    context.stroke();
    last = to;
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = place(event);
    stroke([last[0] + 0.1, last[1]]);
  });
  canvas.addEventListener("pointermove", (event) => last && stroke(place(event)));
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, () => {
      if (last) centred(canvas, picture, paper).then((blob) => showPicture({ name: "your drawing", drawn: true, blob, address: URL.createObjectURL(blob), photo: false }));
      last = null;
    });
  }
  $("clear").addEventListener("click", () => {
    clear();
    $("said").textContent = "";
    $("shown").hidden = true;
    $("look").hidden = true;
  });
}

function centred(canvas, picture, paper) {
  const size = canvas.width, pixels = canvas.getContext("2d").getImageData(0, 0, size, size).data, light = paper === "#fff";
  let left = size, top = size, right = -1, bottom = -1;
  for (let y = 0; y < size; y++) {
    for (let x = 0; x < size; x++) {
      const value = pixels[4 * (y * size + x)];
      if (light ? value < 200 : value > 55) {
        left = Math.min(left, x);
        right = Math.max(right, x);
        top = Math.min(top, y);
        bottom = Math.max(bottom, y);
      }
    }
  }
  const made = element("canvas", { width: size, height: size }), context = made.getContext("2d");
  context.fillStyle = paper;
  context.fillRect(0, 0, size, size);
  if (right >= left) {
    const width = right - left + 1, height = bottom - top + 1;
    const scale = picture.drawn.fill * size / Math.max(width, height);
    const across = width * scale, down = height * scale;
    context.drawImage(canvas, left, top, width, height, (size - across) / 2, (size - down) / 2, across, down);
  }
  return new Promise((done) => made.toBlob(done, "image/png"));
}

// -- words

function setUpText(models) {
  const again = Boolean($("texts").models);
  $("texts").hidden = false;
  $("texts").models = models;
  const place = $("texts").querySelector("[data-answers]");
  let timer;
  const json = (content) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });
  const next = async () => {
    const text = $("text").value;
    const settled = await showAnswers(place, $("texts").models, (model) => ask(`/api/predict?model=${encodeURIComponent(model.name)}`, json({ text })), (word) => {
      $("text").value = `${$("text").value.trimEnd()} ${word === "<eos>" ? "\n" : word}`;
      next();
    });
    const unknown = settled && settled[0].found ? settled[0].found.unknown : [];
    if (settled) $("unknown").textContent = unknown.length ? `The model does not know: ${unknown.slice(0, 8).join(", ")}` : "";
  };
  next();
  if (again) return;
  $("text").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(next, 250);
  });
  $("generate").addEventListener("click", async () => {
    $("generate").disabled = true;
    const text = $("text").value, words = Number($("count").value), temperature = Number($("temperature").value);
    $("generated").replaceChildren(...await Promise.all($("texts").models.map(async (model) => {
      try {
        const found = await ask("/api/generate", json({ model: model.name, text, words, temperature }));
        const said = found.words.map((word) => word === "<eos>" ? "¶" : word).join(" ");
        return element("p", { class: "generated" }, element("strong", {}, `${model.name}: `), element("span", { class: "given" }, `${text} `), said);
      } catch (error) {
        return element("p", { class: "wrong" }, `${model.name}: ${error.message}`);
      }
    })));
    $("generate").disabled = false;
  });
}

// -- tables

function setUpTable(models, number) {
  const section = element("section", { class: "ask" }), form = element("form"), fields = element("div", { class: "fields" });
  const inputs = models[0].columns.map((column, index) => {
    const id = `column-${number}-${index}`;
    let input;
    if (column.kind === "number") {
      input = element("input", { id, type: "number", step: "any", value: Number(column.mean.toPrecision(4)) });
    } else {
      input = element("select", { id }, element("option", { value: "" }, "(missing)"), ...column.categories.map((name) => element("option", {}, name)));
      input.selectedIndex = column.categories.length ? 1 : 0;
    }
    const help = column.kind === "number" ? `mean ${number4(column.mean)}, deviation ${number4(column.deviation)}` : `${column.categories.length} categories`;
    fields.append(element("div", { class: "field" }, element("label", { htmlFor: id }, column.name), input, element("span", { class: "help" }, help)));
    return [column, input];
  });
  const place = element("div", { class: "answers" });
  place.setAttribute("aria-live", "polite");
  form.append(fields, element("p", { class: "row" }, element("button", { class: "main", type: "submit" }, "Predict")));
  const predict = () => {
    const row = {};
    for (const [column, input] of inputs) row[column.name] = input.value === "" ? null : column.kind === "number" ? Number(input.value) : input.value;
    const body = JSON.stringify(row);
    showAnswers(place, models, (model) => ask(`/api/predict?model=${encodeURIComponent(model.name)}`, { method: "POST", headers: { "Content-Type": "application/json" }, body }));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    predict();
  });
  let timer;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(predict, 250);
  });
  section.append(element("h2", {}, `A row of ${models[0].dataset}`), element("div", { class: "columns" }, form, place));
  predict();
  return section;
}

// An example to begin with: the mean of each number, the first of each category.
function firstRow(columns) {
  return Object.fromEntries(columns.map((column) => [column.name, column.kind === "number" ? Number(column.mean.toPrecision(4)) : column.categories[0] || null]));
}

const number4 = (value) => Number(value.toPrecision(4)).toString();

// -- arrays without columns: numbers by input, as JSON

function firstArrays(inputs) {
  const zeros = (shape) => shape.length === 0 ? 0 : Array.from({ length: shape[0] }, () => zeros(shape.slice(1)));
  return Object.fromEntries(inputs.map((one) => [one.name, zeros(one.shape)]));
}

function setUpArrays(models, number) {
  const section = element("section", { class: "ask" }), id = `arrays-${number}`;
  const text = element("textarea", { id, rows: 8, spellcheck: false }, JSON.stringify(firstArrays(models[0].inputs)));
  const place = element("div", { class: "answers" });
  place.setAttribute("aria-live", "polite");
  const button = element("button", { class: "main", type: "button", onclick: () => showAnswers(place, models,
    (model) => ask(`/api/predict?model=${encodeURIComponent(model.name)}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: text.value })) }, "Predict");
  const field = element("div", { class: "field" }, element("label", { htmlFor: id }, "Arrays by the names of the inputs, as JSON"), text);
  section.append(element("h2", {}, `An example of ${models[0].dataset}`), element("div", { class: "columns" }, element("div", {}, field, element("p", { class: "row" }, button)), place));
  return section;
}

document.addEventListener("models", () => {
  const ready = page.ready, groups = new Map();
  const withPictures = ready.filter((model) => model.picture), withText = ready.filter((model) => model.kind === "text");
  if (withPictures.length) setUpPictures(withPictures);
  if (withText.length) setUpText(withText);
  for (const model of ready.filter((each) => !each.picture && each.kind !== "text")) {
    const key = JSON.stringify(model.columns.length ? model.columns.map((column) => column.name) : model.inputs);
    groups.set(key, [...(groups.get(key) || []), model]);
  }
  $("tables").replaceChildren(...[...groups.values()].map((models, number) => models[0].columns.length ? setUpTable(models, number) : setUpArrays(models, number)));
  $("programs").hidden = false;
  $("curl").textContent = curl(ready[0]);
});

// The command that asks a model the same.
function curl(one) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const address = quoted(`${location.origin}/api/predict${page.models.length > 1 ? `?model=${encodeURIComponent(one.name)}` : ""}`);
  const token = "token" in $("curl").dataset ? `-H "Authorization: Bearer $TOKEN" ` : "";
  if (one.picture) return `curl ${token}-F file=@photo.jpg ${address}`;
  const body = one.kind === "text" ? { text: "the company said" } : one.columns.length ? firstRow(one.columns) : firstArrays(one.inputs);
  return `curl ${token}-H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))} ${address}`;
}
