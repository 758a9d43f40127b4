"use strict";
// The rest of the page needs no script. Commands have a button that copies them.
for (const block of document.querySelectorAll("pre.sh")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  block.before(button);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(block);
      button.textContent = "Selected";
    }
  });
}
// Each column header becomes a button that sorts.
for (const table of document.querySelectorAll("table:has(thead)")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "descending" : "ascending");
      const sign = up ? -1 : 1;
      const value = (row) => {
        const cell = row.cells[index];
        const text = cell.dataset.v ?? cell.textContent;
        const isNumber = cell.dataset.v !== undefined || /^-?[\d,]+(\.\d+)?$/.test(text);
        return isNumber ? Number(text.replaceAll(",", "")) : undefined;
      };
      const words = new Intl.Collator("en", { numeric: true });
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x !== undefined && y !== undefined) return sign * (x - y);
        if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
        return sign * words.compare(a.cells[index].textContent, b.cells[index].textContent);
      });
      table.tBodies[0].append(...rows);
    });
  });
}
