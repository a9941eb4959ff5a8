// Draws a tree of methods as a flame graph (root at the bottom) or an icicle (root at the top).

const ROW = 19;
/** Minimum width in pixels of a box that is drawn separately. */
const NARROW = 0.6;
const FONT = '11.5px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

class Graph {
  /** Callbacks for user actions: `zoomed()`, `callers(method)`, `announce(text)`. */
  constructor(callbacks) {
    this.callbacks = callbacks;
    this.scroller = document.getElementById("graph");
    this.spacer = document.getElementById("spacer");
    this.canvas = document.getElementById("frames");
    this.tree = null;
    this.zoom = 0;
    this.focus = -1;
    this.hover = -1;
    this.isMatch = null;
    this.scroller.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.tree !== null && this.scroller.clientHeight > 0 && this.resize()).observe(this.scroller);
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.setFocus(-1));
  }

  /** Shows a tree. The zoom is kept as far as the tree contains the same path of methods. */
  show(tree, profile, isFlame) {
    const path = this.tree === null ? [] : this.path(this.zoom);
    Object.assign(this, { tree, profile, isFlame, hover: -1, focus: -1, zoom: 0 });
    for (const method of path) {
      const child = tree.childrenOf(this.zoom).find((node) => tree.method[node] === method);
      if (child === undefined) break;
      this.zoom = child;
    }
    this.layOut(() => (this.isFlame ? this.height : 0));
  }

  /** Returns the methods from the outermost one to a node. */
  path(node) {
    const path = [];
    for (; node > 0; node = this.tree.parent[node]) path.push(this.tree.method[node]);
    return path.reverse();
  }

  /** Computes the positions of all nodes that are wide enough, and scrolls to the result of `scrolled()`. */
  layOut(scrolled) {
    const { tree } = this;
    this.width = this.scroller.clientWidth;
    const scale = this.width / (tree.total[this.zoom] || 1);
    this.rows = [];
    const put = (depth, box) => (this.rows[depth] ??= []).push(box);
    for (let node = tree.parent[this.zoom]; node >= 0; node = tree.parent[node]) {
      put(tree.depth[node], { node, x: 0, width: this.width });
    }
    const open = [this.zoom];
    while (open.length > 0) {
      const node = open.pop();
      const x = (tree.left[node] - tree.left[this.zoom]) * scale;
      put(tree.depth[node], { node, x, width: tree.total[node] * scale });
      let narrow = 0;
      for (const child of tree.childrenOf(node)) {
        if (tree.total[child] * scale >= NARROW) open.push(child);
        else narrow += tree.total[child];
      }
      // Narrow children are combined in boxes, so that nothing seems to be missing.
      if (narrow * scale >= 1) this.putNarrow(node, scale, put);
    }
    for (const row of this.rows) row.sort((a, b) => a.x - b.x);
    this.spacer.style.height = `${this.height}px`;
    this.scroller.scrollTop = scrolled();
    this.draw();
  }

  /** Adds one box for each run of narrow children between wide ones. */
  putNarrow(node, scale, put) {
    const { tree } = this;
    let [begin, end] = [-1, -1];
    const close = () => {
      if (begin >= 0 && (end - begin) * scale >= 1) {
        const x = (begin - tree.left[this.zoom]) * scale;
        put(tree.depth[node] + 1, { node: -1, x, width: (end - begin) * scale, share: end - begin });
      }
      begin = -1;
    };
    for (const child of tree.childrenOf(node)) {
      if (tree.total[child] * scale >= NARROW) {
        close();
      } else {
        if (begin < 0) begin = tree.left[child];
        end = tree.left[child] + tree.total[child];
      }
    }
    close();
  }

  /** Computes the positions after a change of size. The view keeps its distance to the root. */
  resize() {
    const { scrollTop } = this.scroller;
    const below = this.spacer.clientHeight - scrollTop - this.shownHeight;
    this.layOut(() => (this.isFlame ? this.height - below - this.scroller.clientHeight : scrollTop));
  }

  get height() {
    return Math.max(this.rows.length * ROW + 2, this.scroller.clientHeight);
  }

  /** Returns the upper edge of a row in the complete picture. */
  top(depth) {
    return this.isFlame ? this.height - (depth + 1) * ROW : depth * ROW + 1;
  }

  draw() {
    if (this.tree === null || this.scroller.clientWidth === 0) return;
    const shown = Math.max(1, this.scroller.clientHeight);
    this.shownHeight = shown;
    const context = fit(this.canvas, this.width, shown);
    context.font = FONT;
    context.textBaseline = "middle";
    this.letter ??= context.measureText("M").width;
    const from = this.scroller.scrollTop;
    const colours = { ink: colour("ink"), accent: colour("accent"), ground: colour("ground"), line: colour("line") };
    this.rows.forEach((row, depth) => {
      const y = this.top(depth) - from;
      if (y + ROW < 0 || y > shown) return;
      for (const box of row) this.drawBox(context, box, y, colours);
    });
  }

  drawBox(context, { node, x, width }, y, colours) {
    const { tree } = this;
    const isMatch = this.isMatch !== null && node > 0 && this.isMatch[tree.method[node]] === 1;
    const isAround = node >= 0 && node !== this.zoom && tree.depth[node] < tree.depth[this.zoom];
    context.globalAlpha = isAround ? 0.55 : this.isMatch !== null && !isMatch ? 0.45 : 1;
    context.fillStyle = node < 0 ? colours.line : isMatch ? (darkScheme.matches ? "hsl(316 60% 40%)" : "hsl(316 80% 78%)") : this.fill(node);
    context.fillRect(x, y, Math.max(width - (width > 3 ? 1 : 0.2), 0.5), ROW - 1);
    context.globalAlpha = isAround ? 0.75 : 1;
    if (node >= 0 && width > 3 * this.letter) {
      const text = fitName(tree.name(node), tree.kind(node), Math.floor((width - 7) / this.letter));
      context.fillStyle = colours.ink;
      if (text !== "") context.fillText(text, x + 4, y + ROW / 2, width - 6);
    }
    context.globalAlpha = 1;
    if (node >= 0 && (node === this.focus || node === this.hover)) {
      context.strokeStyle = node === this.focus ? colours.accent : colours.ink;
      context.lineWidth = node === this.focus ? 2 : 1;
      const inset = context.lineWidth / 2;
      context.strokeRect(x + inset, y + inset, Math.max(width - 1 - 2 * inset, 1), ROW - 1 - 2 * inset);
    }
  }

  fill(node) {
    const { tree } = this;
    if (node > 0 && tree.isDifference) return changeColour(tree.change(node) / (tree.largestChange || 1));
    return kindColour(tree.kind(node), node === 0 ? 0 : tree.method[node]);
  }

  /** Returns the box at window coordinates. */
  boxAt({ clientX, clientY }) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const y = clientY - top + this.scroller.scrollTop;
    const depth = this.isFlame ? Math.ceil((this.height - y) / ROW) - 1 : Math.floor((y - 1) / ROW);
    const x = clientX - left;
    return (this.rows[depth] ?? []).find((box) => x >= box.x && x < box.x + box.width) ?? null;
  }

  point(event) {
    const box = event === null ? null : this.boxAt(event);
    const node = box?.node ?? -1;
    if (node !== this.hover) {
      this.hover = node;
      this.draw();
    }
    if (box === null) showTip(0, 0, null);
    else if (node < 0) showTip(event.clientX, event.clientY, "Narrow frames", [`${this.amount(box.share)}: zoom in to see them`]);
    else showTip(event.clientX, event.clientY, this.tree.name(node), this.describe(node));
  }

  amount(number) {
    return `${percent(number, this.tree.total[0])} (${amount(this.profile, number)})`;
  }

  /** Returns lines of text about a node. */
  describe(node) {
    const { tree } = this;
    const lines = [`Total ${this.amount(tree.total[node])}`];
    if (tree.own && node > 0) lines.push(`Self ${this.amount(tree.own[node])}`);
    if (tree.isDifference && node > 0) {
      const points = 100 * tree.change(node);
      lines.push(
        `Before ${percent(tree.base[node], tree.baseTotal)} (${amount(this.profile, tree.base[node])}): ` +
          `${points >= 0 ? "+" : "−"}${Math.abs(points).toFixed(2)} points`,
      );
    }
    const kinds = node > 0 ? tree.kinds.parts(node).filter(([kind]) => kind !== GROUP) : [];
    if (kinds.length === 1) lines.push(kindName(this.profile, kinds[0][0]));
    else if (kinds.length > 1) lines.push(kinds.map(([kind, part]) => `${kindName(this.profile, kind)} ${percent(part, tree.total[node])}`).join(", "));
    return lines;
  }

  click(event) {
    const node = this.boxAt(event)?.node ?? -1;
    if (node < 0) return;
    if (event.shiftKey && node > 0) this.callbacks.callers(this.tree.method[node]);
    else this.zoomTo(node);
  }

  zoomTo(node) {
    const before = this.zoom;
    this.zoom = node;
    const { scrollTop, clientHeight } = this.scroller;
    this.layOut(() => {
      // The node must be visible.
      const top = this.top(this.tree.depth[node]);
      if (top >= scrollTop && top + ROW <= scrollTop + clientHeight) return scrollTop;
      return this.isFlame ? top + 2 * ROW - clientHeight : top - ROW;
    });
    if (before !== node) this.callbacks.zoomed();
  }

  /** Highlights the methods for which `isMatch` is 1. If `isMatch` is null, no method is highlighted. */
  mark(isMatch) {
    this.isMatch = isMatch;
    this.draw();
  }

  setFocus(node) {
    if (this.focus === node) return;
    this.focus = node;
    if (node >= 0) {
      const y = this.top(this.tree.depth[node]);
      const { scrollTop, clientHeight } = this.scroller;
      if (y < scrollTop) this.scroller.scrollTop = y - ROW;
      if (y + ROW > scrollTop + clientHeight) this.scroller.scrollTop = y + 2 * ROW - clientHeight;
      this.callbacks.announce([this.tree.name(node).slice(0, 200), ...this.describe(node)].join(", "));
    }
    this.draw();
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || this.tree === null) return;
    const { tree } = this;
    const at = this.focus < 0 ? this.zoom : this.focus;
    const [inwards, outwards] = this.isFlame ? ["ArrowUp", "ArrowDown"] : ["ArrowDown", "ArrowUp"];
    switch (event.key) {
      case inwards: {
        const widest = tree.childrenOf(at).reduce((a, b) => (a < 0 || tree.total[b] > tree.total[a] ? b : a), -1);
        this.setFocus(this.focus < 0 ? at : widest < 0 ? at : widest);
        break;
      }
      case outwards:
        this.setFocus(this.focus < 0 ? at : Math.max(tree.parent[at], 0));
        break;
      case "ArrowLeft":
      case "ArrowRight": {
        const row = (this.rows[tree.depth[at]] ?? []).filter((box) => box.node >= 0);
        const index = row.findIndex((box) => box.node === at) + (event.key === "ArrowLeft" ? -1 : 1);
        this.setFocus(row[index]?.node ?? at);
        break;
      }
      case "Enter":
      case " ":
        this.zoomTo(at);
        break;
      case "Escape":
      case "Backspace":
        this.zoomTo(event.key === "Escape" ? 0 : Math.max(tree.parent[this.zoom], 0));
        break;
      case "Home":
        this.zoomTo(0);
        break;
      case "c":
        if (at > 0) this.callbacks.callers(tree.method[at]);
        break;
      default:
        return;
    }
    event.preventDefault();
  }

  /** Returns the drawn boxes in window coordinates, for tests. */
  boxes() {
    const { left, top } = this.canvas.getBoundingClientRect();
    const boxes = [];
    this.rows.forEach((row, depth) => {
      const y = this.top(depth) - this.scroller.scrollTop + top;
      for (const { node, x, width } of row) {
        if (node >= 0) boxes.push({ name: this.tree.name(node), total: this.tree.total[node], x: x + left, y, width, height: ROW });
      }
    });
    return boxes;
  }
}
