// Lists: the table of methods, and the filters by thread and kind of code.

/** Maximum number of rows shown; further rows can be found with the search. */
const MAX_LISTED_ROWS = 300;

const element = (name, text = "") => Object.assign(document.createElement(name), { textContent: text });

class Methods {
  /** `onSelect` is called with a method if its callers are to be shown. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.order = { column: "self", isDown: true };
  }

  show(selected, profile, isMatch) {
    Object.assign(this, { selected, profile, isMatch });
    this.all = selected.methods();
    for (const row of this.all) {
      row.change = row.total / (selected.total || 1) - row.baseTotal / (selected.baseTotal || 1);
    }
    this.draw();
  }

  get columns() {
    const columns = [
      ["self", "Self"],
      ["self", ""],
      ["total", "Total"],
      ["total", ""],
    ];
    if (this.selected.baseOwn) columns.push(["baseTotal", "Before"], ["change", "Change"]);
    return [...columns, ["name", "Method"]];
  }

  sorted() {
    const { column, isDown } = this.order;
    const up = (a, b) => (a[column] < b[column] ? -1 : a[column] > b[column] ? 1 : b.total - a.total || (a.name < b.name ? -1 : 1));
    const rows = this.isMatch === null ? this.all : this.all.filter((row) => this.isMatch[row.method]);
    return [...rows].sort(isDown ? (a, b) => (a[column] === b[column] ? up(a, b) : -up(a, b)) : up);
  }

  draw() {
    const rows = this.sorted();
    document.getElementById("columns").replaceChildren(...this.headings());
    document.getElementById("rows").replaceChildren(...rows.slice(0, MAX_LISTED_ROWS).map((row) => this.row(row)));
    const more = rows.length - MAX_LISTED_ROWS;
    document.getElementById("rows-more").textContent = more > 0 ? `${grouped(more)} more methods; use the search to find them.` : "";
  }

  headings() {
    return this.columns
      .filter(([, title]) => title !== "")
      .map(([column, title]) => {
        const heading = element("th");
        heading.scope = "col";
        if (column === "self" || column === "total") heading.colSpan = 2;
        const isChosen = this.order.column === column;
        if (isChosen) heading.setAttribute("aria-sort", this.order.isDown ? "descending" : "ascending");
        const button = element("button", title + (isChosen ? (this.order.isDown ? " ↓" : " ↑") : ""));
        button.type = "button";
        button.dataset.column = column;
        button.addEventListener("click", () => {
          this.order = { column, isDown: isChosen ? !this.order.isDown : column !== "name" };
          this.draw();
          document.querySelector(`#columns [data-column="${column}"]`).focus();
        });
        heading.append(button);
        return heading;
      });
  }

  row(row) {
    const { profile, selected } = this;
    const line = element("tr");
    for (const part of ["self", "total"]) {
      line.append(element("td", percent(row[part], selected.total)), element("td", brief(profile, row[part])));
    }
    if (selected.baseOwn) {
      const points = 100 * row.change;
      line.append(
        element("td", percent(row.baseTotal, selected.baseTotal)),
        element("td", `${points >= 0 ? "+" : "−"}${Math.abs(points).toFixed(2)}`),
      );
    }
    const cell = element("td");
    const mark = element("i");
    mark.style.background = kindColour(row.kind);
    mark.title = kindName(profile, row.kind);
    const name = element("button", row.name.length > 400 ? `${row.name.slice(0, 400)}…` : row.name);
    name.type = "button";
    name.dir = "auto";
    name.title = "Show the callers of this method";
    name.addEventListener("click", () => this.onSelect(row.method));
    cell.append(mark, name);
    line.append(cell);
    return line;
  }
}

class Threads {
  /** `onSelect` is called with the set of threads to exclude. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.off = new Set();
    this.find = document.getElementById("threads-find");
    this.find.addEventListener("input", () => this.draw());
    const set = (off) => {
      this.off = new Set(off);
      this.onSelect(this.off);
    };
    const every = () => this.profile.threads.keys();
    document.getElementById("threads-all").addEventListener("click", () => set([]));
    document.getElementById("threads-none").addEventListener("click", () => set(every()));
    document.getElementById("threads-found").addEventListener("click", () => {
      const found = new Set(this.found());
      set([...every()].filter((thread) => !found.has(thread)));
    });
  }

  show(selected, profile) {
    Object.assign(this, { selected, profile });
    document.getElementById("threads").hidden = !profile.hasThreads;
    const [on, all] = [profile.threads.length - this.off.size, profile.threads.length];
    document.getElementById("threads-chosen").textContent = on === all ? `(${grouped(all)})` : `(${grouped(on)} of ${grouped(all)})`;
    if (document.getElementById("threads").open) this.draw();
  }

  title(thread) {
    const { name, tid, command, pid } = this.profile.threads[thread];
    const isNamed = name !== "" && name !== command;
    return `${isNamed ? name : command} (${tid})${this.profile.hasCommands ? `, ${command} ${pid}` : ""}`;
  }

  /** Returns the threads that match the search, the busiest first. */
  found() {
    const wanted = this.find.value.trim().toLowerCase();
    const { ofThread } = this.selected;
    const found = [...this.profile.threads.keys()].filter((thread) => this.title(thread).toLowerCase().includes(wanted));
    return found.sort((a, b) => ofThread[b] - ofThread[a] || a - b);
  }

  draw() {
    const { ofThread } = this.selected;
    const all = ofThread.reduce((sum, count) => sum + count, 0);
    const found = this.found();
    const items = found.slice(0, MAX_LISTED_ROWS).map((thread) => {
      const [item, label, box] = [element("li"), element("label"), element("input")];
      box.type = "checkbox";
      box.checked = !this.off.has(thread);
      box.addEventListener("change", () => {
        if (box.checked) this.off.delete(thread);
        else this.off.add(thread);
        this.onSelect(this.off);
      });
      const [name, share] = [element("span", this.title(thread)), element("span", percent(ofThread[thread], all))];
      name.className = "name";
      name.dir = "auto";
      share.className = "share";
      label.append(box, name, share);
      item.append(label);
      return item;
    });
    const list = document.getElementById("threads-list");
    // The keyboard focus stays at its position in the list.
    const at = [...list.querySelectorAll("input")].indexOf(document.activeElement);
    list.replaceChildren(...items);
    if (at >= 0) list.querySelectorAll("input")[at]?.focus();
    const more = found.length - MAX_LISTED_ROWS;
    document.getElementById("threads-more").textContent = more > 0 ? `${grouped(more)} more; use the search field above.` : "";
  }
}

/** Shows the legend of colours, which is also the filter by kind of code. */
function showKinds(selected, off, onSelect) {
  const { ofKind } = selected;
  const all = ofKind.reduce((sum, count) => sum + count, 0);
  const holder = document.getElementById("kinds");
  const at = document.activeElement?.dataset?.kind;
  const kinds = KINDS.map((_, kind) => kind).filter((kind) => ofKind[kind] > 0 || off.has(kind));
  const title = element("span", selected.profile.unit === "bytes" ? "Allocated by" : "Innermost frame");
  title.className = "faint";
  holder.replaceChildren(
    title,
    ...kinds.map((kind) => {
      const [button, mark, share] = [element("button"), element("i"), element("span", percent(ofKind[kind], all))];
      button.type = "button";
      button.dataset.kind = kind;
      button.title = `${KIND_TITLES[kind]} (samples whose innermost frame is of this kind)`;
      button.setAttribute("aria-pressed", !off.has(kind));
      mark.style.background = kindColour(kind);
      share.className = "share";
      button.append(mark, kindName(selected.profile, kind), share);
      button.addEventListener("click", () => onSelect(kind));
      return button;
    }),
  );
  if (at !== undefined) holder.querySelector(`[data-kind="${at}"]`)?.focus();
}
