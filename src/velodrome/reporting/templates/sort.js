// A click on a heading sorts its table by that column, another click in the reverse order.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.addEventListener("click", () => {
    const falling = heading.getAttribute("aria-sort") !== "descending";
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column];
      return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
    };
    const order = (one, other) => {
      const [a, b] = [key(one), key(other)];
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
      const step = typeof a === "number" ? a - b : a.localeCompare(b);
      return falling ? -step : step;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }));
}
