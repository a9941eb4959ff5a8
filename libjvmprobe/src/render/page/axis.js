// Time axis: samples as a heat map, and stops as bands. Each column is a period, in which time runs upwards.

/** Possible lengths of a column in seconds; the shortest one that fits is used. */
const COLUMNS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 604800];
const MAX_ROWS = 50;
const MARGIN = { left: 60, bottom: 18, bars: 30 };
const HEAT = 100;

class Axis {
  /** `onSelect` is called with the selected range of slots, or null for all. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.canvas = document.getElementById("heat");
    this.range = null;
    this.cursor = null;
    this.anchor = null;
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    this.canvas.addEventListener("pointerleave", () => showTip(0, 0, null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    document.getElementById("range").addEventListener("submit", (event) => {
      event.preventDefault();
      this.choose(this.seconds("range-from"), this.seconds("range-to"));
    });
    document.getElementById("range-all").addEventListener("click", () => this.set(null));
  }

  seconds(id) {
    const seconds = parseFloat(document.getElementById(id).value);
    return Number.isFinite(seconds) ? seconds : id === "range-from" ? 0 : this.end;
  }

  get end() {
    return (this.times.slots * this.times.slotNs) / 1e9;
  }

  /** Shows the samples that pass all filters except the selected range of time. */
  show(selected, profile) {
    this.times = profile.times;
    document.getElementById("axis").hidden = this.times === null;
    if (this.times === null) return;
    this.profile = profile;
    this.selected = selected;
    this.arrange();
    this.draw();
  }

  /** Sorts samples into cells. */
  arrange() {
    const { slotNs, slot, count } = this.times;
    this.width = Math.max(this.canvas.clientWidth - MARGIN.left - 1, 50);
    const isWhole = (seconds) => (seconds * 1e9) % slotNs === 0;
    const column = COLUMNS.find((seconds) => this.end / seconds <= this.width / 4 && isWhole(seconds)) ?? COLUMNS.at(-1);
    // A column consists of complete slots, whatever their length.
    const inColumn = Math.max(Math.round((column * 1e9) / slotNs), 1);
    this.column = (inColumn * slotNs) / 1e9;
    this.columns = Math.max(Math.ceil(this.end / this.column - 1e-9), 1);
    // All rows have the same number of slots, so that their brightness can be compared.
    this.inRow = 1;
    while (inColumn / this.inRow > MAX_ROWS || inColumn % this.inRow !== 0) this.inRow++;
    this.perColumn = inColumn / this.inRow;
    const cells = new Float64Array(this.columns * this.perColumn);
    for (const row of this.selected.selectedRows) {
      const cell = Math.floor(slot[row] / this.inRow);
      if (cell < cells.length) cells[cell] += count[row];
    }
    this.cells = cells;
    this.most = cells.reduce((most, count) => Math.max(most, count), 0);
    const caption = document.getElementById("axis-caption");
    const swatch = (name, text) => {
      const mark = document.createElement("span");
      mark.className = "swatch";
      mark.style.background = colour(name);
      return [mark, text];
    };
    const has = (kind) => this.times.bands.some((band) => band.kind === kind);
    const { unit } = this.profile;
    const what = unit === "samples" ? "Samples" : unit === "bytes" ? "Allocations" : "Counts";
    const length = this.column < 120 ? `${this.column}\u00a0s` : this.column < 7200 ? `${this.column / 60}\u00a0min` : `${this.column / 3600}\u00a0h`;
    caption.replaceChildren(
      `${what} over time, starting at ${clock(this.times.begin)}. Each column covers ${length}; time runs upwards. `,
      ...(has("gc") ? swatch("gc", "GC pauses") : []),
      ...(has("safepoint") ? swatch("safepoint", "other safepoints") : []),
    );
  }

  /** Returns the sum of each column. */
  sums() {
    const sums = new Float64Array(this.columns);
    this.cells.forEach((count, cell) => (sums[Math.floor(cell / this.perColumn)] += count));
    return sums;
  }

  draw() {
    const height = MARGIN.bars + HEAT + MARGIN.bottom;
    const context = fit(this.canvas, this.canvas.clientWidth, height);
    const [columnWidth, rowHeight] = [this.width / this.columns, HEAT / this.perColumn];
    const gap = columnWidth > 6 ? 1 : 0;
    const bottom = MARGIN.bars + HEAT;
    context.fillStyle = colour("raised");
    context.fillRect(MARGIN.left, MARGIN.bars, this.width, HEAT);
    const hue = darkScheme.matches ? (share) => `hsl(210 ${22 + 34 * share}% ${20 + 46 * share}%)` : (share) => `hsl(211 ${40 + 20 * share}% ${92 - 44 * share}%)`;
    for (let cell = 0; cell < this.cells.length; cell++) {
      if (this.cells[cell] === 0) continue;
      const [column, row] = [Math.floor(cell / this.perColumn), cell % this.perColumn];
      context.fillStyle = hue(Math.sqrt(this.cells[cell] / this.most));
      context.fillRect(MARGIN.left + column * columnWidth, bottom - (row + 1) * rowHeight, columnWidth - gap, Math.max(rowHeight - (rowHeight > 6 ? 1 : 0), 0.5));
    }
    const sums = this.sums();
    const most = sums.reduce((most, sum) => Math.max(most, sum), 0) || 1;
    context.fillStyle = colour("line");
    sums.forEach((sum, column) => {
      const bar = (sum / most) * (MARGIN.bars - 8);
      context.fillRect(MARGIN.left + column * columnWidth, MARGIN.bars - 3 - bar, columnWidth - gap, bar);
    });
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("faint");
    context.textAlign = "right";
    context.textBaseline = "top";
    if (this.most > 0) context.fillText(brief(this.profile, most), MARGIN.left - 6, 4);
    context.textAlign = "left";
    this.drawBands(context, columnWidth, gap);
    if (this.range !== null) this.drawRange(context, columnWidth);
    this.drawScale(context, columnWidth);
  }

  /** Returns the parts of columns that a period covers: column, begin and end as shares of the column. */
  parts(begin, end) {
    const parts = [];
    const last = Math.min(Math.floor(end / this.column), this.columns - 1);
    for (let column = Math.max(Math.floor(begin / this.column), 0); column <= last; column++) {
      const from = Math.max(begin / this.column - column, 0);
      const to = Math.min(end / this.column - column, 1);
      if (to > from) parts.push([column, from, to]);
    }
    return parts;
  }

  drawBands(context, columnWidth, gap) {
    const bottom = MARGIN.bars + HEAT;
    for (const kind of ["safepoint", "gc"]) {
      context.fillStyle = colour(kind);
      for (const band of this.times.bands) {
        if (band.kind !== kind) continue;
        for (const [column, from, to] of this.parts(band.begin, band.end)) {
          const bandHeight = Math.max((to - from) * HEAT, 1.5);
          const y = Math.max(bottom - to * HEAT - (bandHeight - (to - from) * HEAT), MARGIN.bars);
          const x = MARGIN.left + column * columnWidth;
          // The band is translucent, so that the samples under it remain visible. Only a strip at the side of
          // the column is solid.
          const side = Math.max(Math.min(columnWidth / 5, 5), 1);
          context.globalAlpha = 0.55;
          context.fillRect(x, y, columnWidth - gap, bandHeight);
          context.globalAlpha = 1;
          context.fillRect(x, y, side, bandHeight);
        }
      }
    }
  }

  /** Fades everything outside of the selected range, and draws edges at its ends. */
  drawRange(context, columnWidth) {
    const bottom = MARGIN.bars + HEAT;
    const [begin, end] = this.range.map((slot) => (slot * this.times.slotNs) / 1e9);
    context.fillStyle = colour("ground");
    context.globalAlpha = 0.68;
    for (const [column, from, to] of [...this.parts(0, begin), ...this.parts(end, this.columns * this.column)]) {
      context.fillRect(MARGIN.left + column * columnWidth, bottom - to * HEAT, columnWidth, (to - from) * HEAT);
    }
    context.globalAlpha = 1;
    context.fillStyle = colour("accent");
    for (const at of [begin, end]) {
      const column = Math.min(Math.floor(at / this.column), this.columns - 1);
      const y = bottom - (at / this.column - column) * HEAT;
      context.fillRect(MARGIN.left + column * columnWidth, y - 1, columnWidth, 2);
    }
    for (const [column, from, to] of this.parts(begin, end)) {
      if (to > from) context.fillRect(MARGIN.left + column * columnWidth, MARGIN.bars - 3, columnWidth, 2);
    }
  }

  drawScale(context, columnWidth) {
    const bottom = MARGIN.bars + HEAT;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("faint");
    context.textBaseline = "top";
    const step = COLUMNS.find((seconds) => seconds >= this.column && (seconds / this.column) * columnWidth >= 56) ?? this.column;
    for (let at = 0; at < this.end; at += step) {
      const x = MARGIN.left + (at / this.column) * columnWidth;
      context.fillRect(x, bottom, 1, 4);
      context.fillText(at % 3600 === 0 && at > 0 ? `${at / 3600} h` : at % 60 === 0 && at > 0 ? `${at / 60} min` : `${at} s`, x + 3, bottom + 4);
    }
    context.textAlign = "right";
    context.fillText(this.column < 60 ? `${this.column} s` : this.column < 3600 ? `${this.column / 60} min` : `${this.column / 3600} h`, MARGIN.left - 6, MARGIN.bars);
    context.textBaseline = "bottom";
    context.fillText("0", MARGIN.left - 6, bottom + 1);
    context.textAlign = "left";
    if (this.cursor !== null && document.activeElement === this.canvas) {
      const [column, row] = [Math.floor(this.cursor / this.perColumn), this.cursor % this.perColumn];
      context.strokeStyle = colour("accent");
      context.lineWidth = 2;
      const rowHeight = HEAT / this.perColumn;
      context.strokeRect(MARGIN.left + column * columnWidth, bottom - (row + 1) * rowHeight - 1, columnWidth, Math.max(rowHeight, 2) + 2);
    }
  }

  /** Returns the cell at window coordinates; outside of the map, the nearest cell. */
  cellAt({ clientX, clientY }) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const within = (number, end) => Math.min(Math.max(Math.floor(number), 0), end - 1);
    const column = within(((clientX - left - MARGIN.left) / this.width) * this.columns, this.columns);
    const row = within(((top + MARGIN.bars + HEAT - clientY) / HEAT) * this.perColumn, this.perColumn);
    return Math.min(column * this.perColumn + row, Math.ceil(this.times.slots / this.inRow) - 1);
  }

  /** Returns the window coordinates of the middle of a slot's cell. */
  pointOf(slot) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const cell = Math.floor(slot / this.inRow);
    const [column, row] = [Math.floor(cell / this.perColumn), cell % this.perColumn];
    return {
      x: left + MARGIN.left + ((column + 0.5) * this.width) / this.columns,
      y: top + MARGIN.bars + HEAT - ((row + 0.5) * HEAT) / this.perColumn,
    };
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.anchor = this.cellAt(event);
  }

  move(event) {
    const cell = this.cellAt(event);
    const begin = (cell * this.inRow * this.times.slotNs) / 1e9;
    const length = (this.inRow * this.times.slotNs) / 1e9;
    const bands = this.times.bands.filter((band) => band.begin < begin + length && band.end > begin);
    const lines = bands.slice(0, 5).map((band) => {
      const what = band.kind === "gc" ? "GC pause" : "Safepoint";
      return `${what} of ${duration(band.end - band.begin)}: ${band.label}`;
    });
    const title = `${begin.toFixed(2)} s, ${clock(this.times.begin + begin * 1e3, 3)}`;
    const count = this.cells[cell] ?? 0;
    const rate = this.profile.unit === "bytes" ? `, ${bytes(count / length)} per second` : "";
    showTip(event.clientX, event.clientY, title, [`${amount(this.profile, count)} in ${duration(length)}${rate}`, ...lines]);
    if (this.anchor !== null) this.preview(this.anchor, cell);
  }

  release(event) {
    if (this.anchor === null) return;
    const [from, to] = [this.anchor, this.cellAt(event)];
    this.anchor = null;
    this.cursor = to;
    this.set(this.between(from, to));
  }

  /** Returns the range of slots from one cell to another, both inclusive. */
  between(from, to) {
    const [first, last] = from < to ? [from, to] : [to, from];
    return [first * this.inRow, Math.min((last + 1) * this.inRow, this.times.slots)];
  }

  preview(from, to) {
    this.range = this.between(from, to);
    this.draw();
  }

  /** Selects a range in seconds: all slots that it overlaps. */
  choose(from, to) {
    const slots = [Math.floor((from * 1e9) / this.times.slotNs + 1e-6), Math.ceil((to * 1e9) / this.times.slotNs - 1e-6)];
    const [first, last] = slots.map((slot) => Math.min(Math.max(slot, 0), this.times.slots));
    this.set(first < last ? [first, last] : null);
  }

  set(range) {
    this.range = range;
    this.onSelect(range);
  }

  /** Displays a selection, also in the input fields. */
  sync(range) {
    this.range = range;
    if (!this.times) return;
    const [from, to] = (range ?? [0, this.times.slots]).map((slot) => (slot * this.times.slotNs) / 1e9);
    document.getElementById("range-from").value = +from.toFixed(6);
    document.getElementById("range-to").value = +to.toFixed(6);
    document.getElementById("range-all").disabled = range === null;
    this.draw();
  }

  key(event) {
    const steps = { ArrowLeft: -this.perColumn, ArrowRight: this.perColumn, ArrowUp: 1, ArrowDown: -1 };
    if (event.key === "Escape") {
      this.fixed = null;
      this.set(null);
    } else if (event.key in steps) {
      const before = this.cursor ?? 0;
      const last = Math.ceil(this.times.slots / this.inRow) - 1;
      this.cursor = Math.min(Math.max(before + steps[event.key], 0), last);
      this.fixed = event.shiftKey ? (this.fixed ?? before) : null;
      if (this.fixed !== null) this.set(this.between(this.fixed, this.cursor));
      else this.draw();
    } else if (event.key === "Enter" && this.cursor !== null) {
      this.set(this.between(this.cursor, this.cursor));
    } else {
      return;
    }
    event.preventDefault();
  }
}
