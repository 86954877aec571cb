"use strict";
// The headers of a table become buttons: the first press sorts by the column, the next the other way.

for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sortBy(table, headers, column));
    header.append(button);
  });
}

function sortBy(table, headers, column) {
  const direction = headers[column].getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
  rows.sort((one, other) => compare(one.key, other.key, direction));
  body.append(...rows.map(({ row }) => row));
  headers.forEach((header) => header.removeAttribute("aria-sort"));
  headers[column].setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
}

function keyOf(cell) {
  return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
}

// Numbers by size and texts by the alphabet; a cell without a number is last either way.
function compare(one, other, direction) {
  const numbers = [typeof one === "number", typeof other === "number"];
  if (numbers[0] && numbers[1]) return direction * (one - other);
  if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1;
  return direction * one.localeCompare(other, "en", { numeric: true });
}
