"use strict";
(() => {
  // Return the number at the start of a cell, without signs such as ×, or null if the cell begins with words.
  const numberIn = (text) => {
    const found = text.replace(/,/g, "").replace("−", "-").match(/^[×+(\s]*(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)/i);
    return found ? Number(found[1]) : null;
  };
  const compare = (one, other) => {
    const [left, right] = [numberIn(one), numberIn(other)];
    if (left !== null && right !== null && left !== right) return left - right;
    if ((left === null) !== (right === null)) return left === null ? 1 : -1;
    return one.localeCompare(other, "en", { numeric: true });
  };
  const sort = (table, place, heading) => {
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((one, other) => {
      const [left, right] = [one.cells[place].textContent, other.cells[place].textContent];
      const empty = (left === "–") - (right === "–"); // cells without a value stay last in both orders
      return empty || (down ? compare(right, left) : compare(left, right));
    });
    table.tBodies[0].append(...rows);
  };
  for (const table of document.querySelectorAll("table")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, place, heading));
    });
  }

  const select = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  };
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        select(code); // no access to the clipboard: select the text, so that the keyboard can copy it
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement.style;
    const dark = root.colorScheme ? root.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.colorScheme = dark ? "light" : "dark";
  });

  let closed = [];
  addEventListener("beforeprint", () => {
    closed.push(...document.querySelectorAll("details:not([open])"));
    for (const details of closed) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of closed) details.open = false;
    closed = [];
  });
})();
