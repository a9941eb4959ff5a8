// Current selection, and the update of all parts of the page when it changes.

const byId = (id) => document.getElementById(id);
const raw = JSON.parse(byId("data").textContent);
const names = new Names(raw.names);
const profiles = raw.events.map((event) => new Profile(event, names));

const state = {
  event: 0,
  view: "flame",
  split: raw.threads,
  range: null,
  threadsOff: new Set(),
  kindsOff: new Set(),
  /** Method whose callers are shown; null for the callers of all innermost frames. */
  method: null,
  search: "",
};
const shown = { selected: null, tree: null, isMatch: null };
const current = () => profiles[state.event];

const graph = new Graph({
  zoomed: () => (showZoom(), showMatches()),
  callers: (method) => set({ view: "callers", method }),
  announce: (text) => (byId("announcement").textContent = text),
});
const axis = new Axis((range) => set({ range }));
const methods = new Methods((method) => set({ view: "callers", method }));
const threads = new Threads((threadsOff) => set({ threadsOff }));

/** Applies changes to the selection and redraws. */
function set(changes) {
  Object.assign(state, changes);
  const isOfSame = Object.keys(changes).every((what) => ["view", "method"].includes(what));
  if ("event" in changes) {
    // Filters by thread, time and kind belong to one profile.
    Object.assign(state, { threadsOff: new Set(), range: null, kindsOff: new Set() });
    threads.off = state.threadsOff;
    byId("subtitle").textContent = current().subtitle;
  }
  if (!isOfSame) choose();
  draw();
}

/** Computes the sums of the selection. */
function choose() {
  const profile = current();
  const selected = new SelectedSamples(profile, state);
  shown.selected = selected;
  byId("event").value = String(state.event);
  byId("split").checked = state.split && profile.hasThreads;
  threads.show(selected, profile);
  showKinds(selected, state.kindsOff, (kind) => {
    const kindsOff = new Set(state.kindsOff);
    if (!kindsOff.delete(kind)) kindsOff.add(kind);
    set({ kindsOff });
  });
  const inTime = profile.times === null ? null : new SelectedSamples(profile, { ...state, range: [0, profile.times.slots] });
  axis.show(inTime, profile);
  axis.sync(state.range);
}

function draw() {
  const [profile, { selected }] = [current(), shown];
  for (const button of document.querySelectorAll("[data-view]")) {
    button.setAttribute("aria-pressed", button.dataset.view === state.view);
  }
  const isTable = state.view === "methods";
  const isEmpty = selected.total === 0 && !selected.baseTotal;
  byId("nothing").hidden = !isEmpty;
  byId("graph").hidden = isTable || isEmpty;
  byId("methods").hidden = !isTable || isEmpty;
  findMatches();
  shown.tree = state.view === "callers" ? selected.callers(state.method) : selected.callees();
  if (isTable) methods.show(selected, profile, shown.isMatch);
  else if (!isEmpty) graph.show(shown.tree, profile, state.view === "flame");
  graph.canvas.setAttribute("aria-label", `${profile.name}: ${amount(profile, selected.total)}`);
  if (!isTable) graph.mark(shown.isMatch);
  showZoom();
  showMatches();
}

/** Determines the methods that match the search: plain text, or a regular expression between slashes. */
function findMatches() {
  const text = state.search.trim();
  shown.isMatch = null;
  if (text === "") return;
  let isFound = (name) => name.toLowerCase().includes(text.toLowerCase());
  if (text.length > 2 && text.startsWith("/") && text.endsWith("/")) {
    try {
      const pattern = new RegExp(text.slice(1, -1), "i");
      isFound = (name) => pattern.test(name);
    } catch {
      // An invalid expression is searched for as plain text.
    }
  }
  shown.isMatch = Uint8Array.from(names.names, (name) => (isFound(name) ? 1 : 0));
}

/** Returns the sum of the samples in highlighted methods below the zoomed node, and the total of that node. */
function matched() {
  const within = state.view === "methods" ? 0 : graph.zoom;
  const { tree, isMatch } = shown;
  if (isMatch === null) return null;
  return { part: tree.matching(within, isMatch), of: tree.total[within] };
}

function showMatches() {
  const found = matched();
  byId("matches").textContent = found === null ? "" : `${percent(found.part, found.of)} in matching methods`;
}

/** Returns a text with the total of the earlier profile, if the page shows the difference to one. */
function before() {
  const { baseTotal } = shown.selected;
  return baseTotal === undefined ? "" : `; before: ${amount(current(), baseTotal)}. Red: larger share than before; blue: smaller share.`;
}

function showZoom() {
  const { tree } = shown;
  const isTable = state.view === "methods";
  const isCallers = state.view === "callers" && state.method !== null;
  const isZoomed = graph.zoom > 0 && !isTable && graph.tree === tree;
  byId("zoom-reset").hidden = !isZoomed && !(isCallers && !isTable);
  byId("zoom-callers").hidden = !isZoomed || tree.kind(graph.zoom) === GROUP;
  const part = (number) => `${percent(number, shown.selected.total)}, ${amount(current(), number)}`;
  const name = (text) => element("b", text.slice(0, 300));
  byId("zoom-what").replaceChildren(
    ...(isZoomed
      ? [name(tree.name(graph.zoom)), ` ${part(tree.total[graph.zoom])}`]
      : isCallers && !isTable
        ? ["Callers of ", name(names.names[state.method]), ` ${part(tree.total[0])}`]
        : [name("All"), ` ${amount(current(), shown.selected.total)}${before()}`]),
  );
}

for (const [number, profile] of profiles.entries()) {
  const option = element("option", profile.name);
  option.value = String(number);
  byId("event").append(option);
}
byId("event-label").hidden = profiles.length < 2;
byId("title").textContent = raw.title;
byId("event").addEventListener("change", () => set({ event: Number(byId("event").value), method: null }));
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => set({ view: button.dataset.view, method: null }));
}
byId("split").addEventListener("change", () => set({ split: byId("split").checked }));
byId("threads").addEventListener("toggle", () => byId("threads").open && threads.draw());
document.addEventListener("click", (event) => {
  if (!byId("threads").contains(event.target) && event.target.isConnected) byId("threads").open = false;
});
byId("zoom-reset").addEventListener("click", () => {
  if (graph.zoom > 0) graph.zoomTo(0);
  else set({ method: null, view: "flame" });
});
byId("zoom-callers").addEventListener("click", () => set({ view: "callers", method: shown.tree.method[graph.zoom] }));
byId("search").addEventListener("input", () => {
  state.search = byId("search").value;
  findMatches();
  graph.mark(shown.isMatch);
  if (state.view === "methods") methods.show(shown.selected, current(), shown.isMatch);
  showMatches();
});
document.addEventListener("keydown", (event) => {
  const isField = ["INPUT", "SELECT"].includes(event.target.tagName);
  if (event.key === "/" && !isField) {
    event.preventDefault();
    byId("search").focus();
  } else if (event.key === "Escape" && byId("threads").open) {
    byId("threads").open = false;
    byId("threads").querySelector("summary").focus();
  } else if (event.key === "Escape" && !isField && document.activeElement === document.body) {
    graph.zoomTo(0);
  }
});
let waiting = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => {
    if (current().times) {
      axis.arrange();
      axis.draw();
    }
  });
});
darkScheme.addEventListener("change", () => {
  choose();
  draw();
});

/** Interface for tests and the console: shown data and positions. */
window.jvmprobe = {
  state: () => ({ ...state, threadsOff: [...state.threadsOff], kindsOff: [...state.kindsOff] }),
  folded: (byThread = false) => shown.selected.folded(byThread),
  total: () => shown.selected.total,
  matched,
  boxes: () => graph.boxes(),
  describe: (name) => graph.describe([...graph.rows.flat()].find((box) => graph.tree.name(box.node) === name)?.node ?? 0),
  zoomed: () => graph.tree.name(graph.zoom),
  pointOf: (slot) => axis.pointOf(slot),
  methods: () => shown.selected.methods(),
  threads: () => current().threads,
};
set({ event: 0 });
