// Decodes the page's data, and provides access to them.

/** Kinds of code, by their numbers in the data. The last kind is not code: it marks the node of a process or
 * a thread. A sample without a stack belongs to such a node. */
const KINDS = ["Compiled", "Inlined", "Interpreted", "Stub", "JVM", "Native", "Kernel", "Class", "Unknown", "No stack"];

/** Returns the name of a kind. In allocation profiles, compiled code is shown as Java code. */
function kindName(profile, kind) {
  return profile.unit === "bytes" && kind === 0 ? "Java" : KINDS[kind];
}

const JAVA = 2;
const KERNEL = 6;
const CLASS = 7;
const GROUP = 9;

/** Decoder of integers with five bits per character: see packed.rs. */
class Packed {
  static DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  static VALUES = (() => {
    const values = new Uint8Array(128);
    for (let i = 0; i < 64; i++) values[Packed.DIGITS.charCodeAt(i)] = i;
    return values;
  })();

  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  get more() {
    return this.at < this.text.length;
  }

  next() {
    let number = 0;
    // Multiplication instead of shifts, which are limited to 32 bits.
    for (let scale = 1; ; scale *= 32) {
      const digit = Packed.VALUES[this.text.charCodeAt(this.at++)];
      number += (digit & 31) * scale;
      if (digit < 32) return number;
    }
  }
}

/** Growing array of numbers. */
class Numbers {
  constructor(kind = Int32Array, capacity = 1024) {
    this.all = new kind(capacity);
    this.length = 0;
  }

  push(number) {
    if (this.length === this.all.length) {
      const larger = new this.all.constructor(2 * this.length);
      larger.set(this.all);
      this.all = larger;
    }
    this.all[this.length++] = number;
  }

  done() {
    return this.all.slice(0, this.length);
  }
}

/** Nodes of a tree, each identified by its parent node and a method; 0 is the root. Implemented as a hash table
 * of numbers, because a profile may have more nodes than a Map can hold. */
class MergedNodes {
  constructor() {
    [this.parent, this.method] = [new Numbers(), new Numbers()];
    this.slots = new Int32Array(1 << 12);
    this.parent.push(-1);
    this.method.push(-1);
  }

  slotOf(parent, method) {
    let hash = Math.imul(parent, 0x9e3779b1) ^ Math.imul(method + 1, 0x85ebca6b);
    hash ^= hash >>> 15;
    const last = this.slots.length - 1;
    let slot = hash & last;
    for (let node; (node = this.slots[slot]) > 0; slot = (slot + 1) & last) {
      if (this.parent.all[node] === parent && this.method.all[node] === method) break;
    }
    return slot;
  }

  /** Returns the number of a node, which is added if it is new. */
  at(parent, method) {
    const slot = this.slotOf(parent, method);
    if (this.slots[slot] > 0) return this.slots[slot];
    const node = this.parent.length;
    this.parent.push(parent);
    this.method.push(method);
    this.slots[slot] = node;
    if (2 * node > this.slots.length) this.grow();
    return node;
  }

  grow() {
    this.slots = new Int32Array(4 * this.slots.length);
    for (let node = 1; node < this.parent.length; node++) {
      this.slots[this.slotOf(this.parent.all[node], this.method.all[node])] = node;
    }
  }
}

/** Names, methods and frames. A method is identified by its name, and by whether it is a kernel function. */
class Names {
  constructor(raw) {
    const shared = new Packed(raw.shared);
    let before = "";
    const texts = raw.rest.map((rest) => (before = before.slice(0, shared.next()) + rest));
    /** For each method, its name and whether it belongs to the kernel. */
    this.names = [];
    this.isKernel = [];
    /** For each frame, its method and its kind. */
    this.method = [];
    this.kind = [];
    this.known = new Map();
    for (const packed = new Packed(raw.frames); packed.more; ) {
      const text = texts[packed.next()];
      const kind = packed.next();
      this.method.push(this.enter(text, kind === KERNEL));
      this.kind.push(kind);
    }
  }

  /** Returns the number of a method, which is added if it is new. */
  enter(name, isKernel) {
    const key = (isKernel ? "k" : "-") + name;
    let method = this.known.get(key);
    if (method === undefined) {
      method = this.names.length;
      this.names.push(name);
      this.isKernel.push(isKernel);
      this.known.set(key, method);
    }
    return method;
  }

  /** Returns for each method its rank in the order of names. Trees are drawn in this order, because it does
   * not depend on the selection. */
  ranks() {
    if (this.ranked?.length !== this.names.length) {
      const order = this.names.map((_, method) => method);
      order.sort((a, b) => (this.names[a] < this.names[b] ? -1 : this.names[a] > this.names[b] ? 1 : a - b));
      this.ranked = new Int32Array(order.length);
      order.forEach((method, rank) => (this.ranked[method] = rank));
    }
    return this.ranked;
  }

  /** Returns a method's name in folded stacks. */
  folded(method) {
    return this.names[method].replaceAll(";", ":") + (this.isKernel[method] ? "_[k]" : "");
  }
}

/** A profile: stacks as paths in a tree of frames, and rows with the counts per stack and thread. */
class Profile {
  constructor(raw, names) {
    this.names = names;
    Object.assign(this, { name: raw.name, subtitle: raw.subtitle, unit: raw.unit, hertz: raw.hertz });
    this.threads = raw.threads.map(([pid, tid, command, name]) => ({ pid, tid, command, name }));
    this.readStacks(new Packed(raw.stacks));
    this.samples = { stack: new Numbers(), thread: new Numbers(), count: new Numbers(Float64Array) };
    let stack = 0;
    for (const packed = new Packed(raw.samples); packed.more; ) {
      this.samples.stack.push((stack += packed.next()));
      this.samples.thread.push(packed.next());
      this.samples.count.push(packed.next());
    }
    for (const column in this.samples) this.samples[column] = this.samples[column].done();
    this.base = raw.base === undefined ? null : this.readBase(new Packed(raw.base));
    this.times = raw.times ? this.readTimes(raw.times) : null;
    this.forests = new Map();
  }

  /** Decodes stacks. A node is a frame within its parent node; 0 is the root. Parents precede children. */
  readStacks(packed) {
    const [parent, frame, ofStack] = [new Numbers(), new Numbers(), new Numbers()];
    parent.push(-1);
    frame.push(-1);
    const path = [0];
    while (packed.more) {
      path.length = packed.next() + 1;
      for (let rest = packed.next(); rest > 0; rest--) {
        parent.push(path.at(-1));
        frame.push(packed.next());
        path.push(parent.length - 1);
      }
      ofStack.push(path.at(-1));
    }
    Object.assign(this, { parent: parent.done(), frame: frame.done(), nodeOfStack: ofStack.done() });
  }

  readBase(packed) {
    const base = { stack: [], count: [], total: 0 };
    let stack = 0;
    while (packed.more) {
      base.stack.push((stack += packed.next()));
      base.count.push(packed.next());
      base.total += base.count.at(-1);
    }
    return base;
  }

  readTimes(raw) {
    const rows = { slot: new Numbers(), stack: new Numbers(), thread: new Numbers(), count: new Numbers(Float64Array) };
    let slot = 0;
    for (const packed = new Packed(raw.counts); packed.more; ) {
      rows.slot.push((slot += packed.next()));
      rows.stack.push(packed.next());
      rows.thread.push(packed.next());
      rows.count.push(packed.next());
    }
    for (const column in rows) rows[column] = rows[column].done();
    const bands = raw.bands.map(([begin, end, kind, label]) => ({ begin: begin / 1e6, end: end / 1e6, kind, label }));
    const lastBand = bands.reduce((last, band) => Math.max(last, band.end), 0);
    const slots = Math.max(rows.slot.length ? slot + 1 : 0, Math.ceil((lastBand * 1e9) / raw.slot_ns), 1);
    return { ...rows, begin: raw.begin_ms, slotNs: raw.slot_ns, slots, bands };
  }

  /** Returns the names of a stack's frames for a folded line. */
  path(stack) {
    const parts = [];
    for (let node = this.nodeOfStack[stack]; node > 0; node = this.parent[node]) {
      parts.push(this.names.folded(this.names.method[this.frame[node]]));
    }
    return parts.reverse();
  }

  /** Whether the samples belong to several commands. Never true for a difference, whose stacks contain the
   * commands. */
  get hasCommands() {
    return !this.base && this.threads.some((thread) => thread.command !== this.threads[0].command);
  }

  /** Whether the samples have threads. Never true for a difference, whose stacks may contain the threads. */
  get hasThreads() {
    return !this.base && this.threads.length > 0 && this.threads.some((thread) => thread.tid > 0);
  }

  /** Returns the tree to draw, with or without separate threads; it is created at the first call. */
  forest(split) {
    if (!this.forests.has(split)) this.forests.set(split, new Forest(this, split));
    return this.forests.get(split);
  }
}

/** The tree of a profile's nodes, each with its method and kind. If commands or threads are shown, each of
 * them is a node above its stacks. `merged` maps each node to a merged node: nodes that differ only in their
 * kinds have the same one. */
class Forest {
  constructor(profile, split) {
    this.profile = profile;
    this.names = profile.names;
    this.split = split && profile.hasThreads;
    if (this.split || profile.hasCommands) this.copy();
    else this.useProfileNodes();
    this.findRunning();
    this.merge();
  }

  /** Uses the profile's own nodes: there are no nodes for commands and threads. */
  useProfileNodes() {
    const { profile, names } = this;
    const { parent, frame, nodeOfStack: at, samples, times, base } = profile;
    this.parent = parent;
    this.method = Int32Array.from(frame, (number) => (number < 0 ? -1 : names.method[number]));
    this.kind = Uint8Array.from(frame, (number) => (number < 0 ? GROUP : names.kind[number]));
    const nodes = ({ stack }) => Int32Array.from(stack, (number) => at[number]);
    this.nodeOfSample = nodes(samples);
    this.nodeOfTime = times ? nodes(times) : null;
    this.nodeOfBase = base?.stack.map((number) => at[number]);
  }

  /** Copies the profile's nodes below nodes for commands and threads. */
  copy() {
    const { profile } = this;
    [this.parent, this.method, this.kind] = [new Numbers(), new Numbers(), new Numbers(Uint8Array)];
    this.add(-1, -1, GROUP);
    this.heads = new Map();
    this.copies = new Map();
    const heads = profile.threads.map((thread) => this.head(thread));
    const nodes = ({ stack, thread }) =>
      Int32Array.from(stack, (number, row) => this.nodeOf(heads[thread[row]], profile.nodeOfStack[number]));
    this.nodeOfSample = nodes(profile.samples);
    this.nodeOfTime = profile.times ? nodes(profile.times) : null;
    for (const column of ["parent", "method", "kind"]) this[column] = this[column].done();
  }

  add(parent, method, kind) {
    this.parent.push(parent);
    this.method.push(method);
    this.kind.push(kind);
    return this.parent.length - 1;
  }

  /** Adds nodes for a thread's command and name, unless they exist. Returns a map from the profile's nodes to
   * their copies below these nodes. */
  head({ tid, command, name }) {
    const titles = [];
    if (this.profile.hasCommands) titles.push(command);
    if (this.split) titles.push(`${name}-${tid}`);
    let node = 0;
    for (const title of titles) {
      const key = `${node} ${title}`;
      if (!this.heads.has(key)) {
        this.heads.set(key, this.add(node, this.names.enter(title, false), GROUP));
      }
      node = this.heads.get(key);
    }
    if (!this.copies.has(node)) this.copies.set(node, new Map([[0, node]]));
    return this.copies.get(node);
  }

  /** Returns the copy of the profile's node `of`. Adds the copy, and those of outer nodes, if they are
   * missing. */
  nodeOf(copies, of) {
    const { parent, frame, names } = this.profile;
    const path = [];
    let node;
    while ((node = copies.get(of)) === undefined) {
      path.push(of);
      of = parent[of];
    }
    while (path.length > 0) {
      of = path.pop();
      node = this.add(node, names.method[frame[of]], names.kind[frame[of]]);
      copies.set(of, node);
    }
    return node;
  }

  /** Determines the kind of code that runs at each node. A class is not code: its node gets the kind of the
   * frame around it, if there is one. */
  findRunning() {
    this.running = Uint8Array.from(this.kind);
    for (let node = 1; node < this.kind.length; node++) {
      const around = this.parent[node];
      if (this.kind[node] === CLASS && around > 0 && this.kind[around] !== GROUP) {
        this.running[node] = this.running[around];
      }
    }
  }

  merge() {
    const mergedNodes = new MergedNodes();
    const merged = new Int32Array(this.parent.length);
    for (let node = 1; node < merged.length; node++) {
      merged[node] = mergedNodes.at(merged[this.parent[node]], this.method[node]);
    }
    this.merged = merged;
    this.mergedParent = mergedNodes.parent.done();
    this.mergedMethod = mergedNodes.method.done();
  }

  /** Returns for each node whether no outer node has the same method. */
  outermost() {
    if (this.isOutermost) return this.isOutermost;
    const { parent, method } = this;
    this.isOutermost = new Uint8Array(parent.length);
    // If there are nodes for commands or threads, nodes are not numbered depth-first. So the children of each
    // node are linked first.
    const [next, first] = [new Int32Array(parent.length), new Int32Array(parent.length)];
    for (let node = parent.length - 1; node > 0; node--) {
      next[node] = first[parent[node]];
      first[parent[node]] = node;
    }
    const around = new Int32Array(this.names.names.length);
    for (let node = first[0]; node > 0; ) {
      this.isOutermost[node] = around[method[node]] === 0 ? 1 : 0;
      around[method[node]]++;
      if (first[node] > 0) {
        node = first[node];
        continue;
      }
      while (node > 0) {
        around[method[node]]--;
        if (next[node] > 0) {
          node = next[node];
          break;
        }
        node = parent[node];
      }
    }
    return this.isOutermost;
  }
}
