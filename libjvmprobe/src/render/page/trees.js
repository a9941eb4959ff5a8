// Sums of the selected samples: trees to draw, methods, folded stacks.

/** Selected rows of a profile. A row is selected if its slot is in the range, and its thread and its kind of
 * code pass the filters. */
class SelectedSamples {
  constructor(profile, { split, range, threadsOff, kindsOff }) {
    this.profile = profile;
    this.forest = profile.forest(split);
    const isTimed = range !== null && profile.times !== null;
    const rows = isTimed ? profile.times : profile.samples;
    const nodes = isTimed ? this.forest.nodeOfTime : this.forest.nodeOfSample;
    const [first, last] = isTimed ? [lowerBound(rows.slot, range[0]), lowerBound(rows.slot, range[1])] : [0, nodes.length];
    const { running } = this.forest;
    this.rows = rows;
    this.selectedRows = [];
    /** Count of each node as innermost frame. `baseOwn` has the same counts of the base. */
    this.own = new Float64Array(this.forest.parent.length);
    this.total = 0;
    this.ofThread = new Float64Array(profile.threads.length);
    this.ofKind = new Float64Array(KINDS.length);
    for (let row = first; row < last; row++) {
      const kind = running[nodes[row]];
      const [isThread, isKind] = [!threadsOff.has(rows.thread[row]), !kindsOff.has(kind)];
      // The counts shown in a filter ignore that filter, so that excluded entries show what they would add.
      if (isKind) this.ofThread[rows.thread[row]] += rows.count[row];
      if (isThread) this.ofKind[kind] += rows.count[row];
      if (!isThread || !isKind) continue;
      this.own[nodes[row]] += rows.count[row];
      this.total += rows.count[row];
      this.selectedRows.push(row);
    }
    this.addBase(kindsOff);
  }

  addBase(kindsOff) {
    const { base } = this.profile;
    if (!base) return;
    this.baseTotal = 0;
    this.baseOwn = new Float64Array(this.own.length);
    this.forest.nodeOfBase.forEach((node, row) => {
      if (kindsOff.has(this.forest.running[node])) return;
      this.baseOwn[node] += base.count[row];
      this.baseTotal += base.count[row];
    });
  }

  /** Returns the count of each node, including its descendants. */
  sums(own) {
    const sums = Float64Array.from(own);
    const { parent } = this.forest;
    for (let node = sums.length - 1; node > 0; node--) sums[parent[node]] += sums[node];
    return sums;
  }

  /** Returns the call tree: each method occurs once per caller, whatever kind of code ran it. */
  callees() {
    return (this.tree ??= this.addUp().layOut());
  }

  addUp() {
    const { merged, mergedParent, mergedMethod, kind } = this.forest;
    const tree = new Callees(this, mergedParent, mergedMethod);
    const sums = this.sums(this.own);
    for (let node = 0; node < sums.length; node++) {
      tree.total[merged[node]] += sums[node];
      tree.own[merged[node]] += this.own[node];
      tree.kinds.add(merged[node], kind[node], sums[node]);
    }
    if (this.baseOwn) {
      this.sums(this.baseOwn).forEach((sum, node) => (tree.base[merged[node]] += sum));
    }
    return tree;
  }

  /** Returns the caller tree of a method; without a method, that of all innermost frames. */
  callers(method) {
    return new Callers(this, method).layOut();
  }

  /** Returns for each method its count as innermost frame and anywhere in a stack; recursion does not count twice. */
  methods() {
    const { forest } = this;
    const { parent, method, kind } = forest;
    const size = forest.names.names.length;
    const isOutermost = forest.outermost();
    const add = (own) => {
      const [self, total] = [new Float64Array(size), new Float64Array(size)];
      this.sums(own).forEach((sum, node) => {
        if (node === 0 || kind[node] === GROUP) return;
        self[method[node]] += own[node];
        if (isOutermost[node]) total[method[node]] += sum;
      });
      return { self, total };
    };
    const now = add(this.own);
    const base = this.baseOwn ? add(this.baseOwn) : null;
    const kinds = new KindCounts(size);
    this.sums(this.own).forEach((sum, node) => {
      if (node > 0) kinds.add(method[node], kind[node], sum);
    });
    const all = [];
    for (let number = 0; number < size; number++) {
      if (now.total[number] === 0 && !(base?.total[number] > 0)) continue;
      all.push({
        method: number,
        name: forest.names.names[number],
        kind: kinds.most(number),
        self: now.self[number],
        total: now.total[number],
        baseSelf: base?.self[number] ?? 0,
        baseTotal: base?.total[number] ?? 0,
      });
    }
    return all;
  }

  /** Returns folded stacks of the selection, in the format of `.folded` files. */
  folded(threads) {
    const { profile, rows } = this;
    const part = (name) => name.replaceAll(";", "_");
    const heads = profile.threads.map(({ command, name, tid }) =>
      threads ? [part(command), `${part(name)}-${tid}`] : [part(command)],
    );
    const sums = new Map();
    for (const row of this.selectedRows) {
      const path = profile.path(rows.stack[row]);
      const line = (profile.base ? path : [...heads[rows.thread[row]], ...path]).join(";");
      sums.set(line, (sums.get(line) ?? 0) + rows.count[row]);
    }
    return [...sums].map(([line, count]) => `${line} ${count}`).sort();
  }
}

/** Returns the index of the first of these sorted numbers that is at least `number`. */
function lowerBound(sorted, number) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] < number) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Counts of items by kind of code. Most items have a single kind. To save memory, the counts of an item are
 * therefore a linked list, not an array with an entry for every kind. */
class KindCounts {
  constructor(size) {
    this.first = new Int32Array(size);
    this.next = new Numbers();
    this.kind = new Numbers(Uint8Array);
    this.count = new Numbers(Float64Array);
    for (const column of [this.next, this.kind, this.count]) column.push(0);
  }

  add(at, kind, count) {
    if (count === 0) return;
    let link = this.first[at];
    while (link > 0 && this.kind.all[link] !== kind) link = this.next.all[link];
    if (link === 0) {
      link = this.kind.length;
      this.next.push(this.first[at]);
      this.kind.push(kind);
      this.count.push(0);
      this.first[at] = link;
    }
    this.count.all[link] += count;
  }

  /** Returns kinds with their counts, largest first. */
  parts(at) {
    const parts = [];
    for (let link = this.first[at]; link > 0; link = this.next.all[link]) {
      parts.push([this.kind.all[link], this.count.all[link]]);
    }
    return parts.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  }

  /** Returns the kind with the largest count. */
  most(at) {
    const first = this.first[at];
    if (first === 0) return GROUP - 1;
    return this.next.all[first] === 0 ? this.kind.all[first] : this.parts(at)[0][0];
  }
}

/** A tree of methods with counts; children are in the order of names. For each node there are `parent`,
 * `method`, `total` and `depth`, the start position `left` in the unit of the counts, and childrenOf(). */
class Tree {
  constructor(selected) {
    this.names = selected.forest.names;
    this.own = null;
    this.isDifference = selected.baseOwn !== undefined;
    this.base = null;
    this.baseTotal = selected.baseTotal;
  }

  name(node) {
    return node === 0 ? "all" : this.names.names[this.method[node]];
  }

  kind(node) {
    return node === 0 ? GROUP : this.kinds.most(node);
  }

  /** Returns a node's share of the profile minus its share of the base. */
  change(node) {
    return this.total[node] / (this.total[0] || 1) - this.base[node] / (this.baseTotal || 1);
  }
}

/** The call tree. It is built completely, because it is not larger than the profile. */
class Callees extends Tree {
  constructor(selected, parent, method) {
    super(selected);
    this.parent = parent;
    this.method = method;
    this.size = parent.length;
    this.own = new Float64Array(this.size);
    this.total = new Float64Array(this.size);
    this.kinds = new KindCounts(this.size);
    if (this.isDifference) this.base = new Float64Array(this.size);
  }

  childrenOf(node) {
    return this.children.subarray(this.from[node], this.from[node + 1]);
  }

  /** Computes positions. The children of a node are `children[from[node]] ...
   * children[from[node + 1] - 1]`. */
  layOut() {
    const { parent, method, total, size } = this;
    const ranks = this.names.ranks();
    this.from = new Int32Array(size + 2);
    for (let node = 1; node < size; node++) if (total[node] > 0) this.from[parent[node] + 2]++;
    for (let node = 1; node < size + 2; node++) this.from[node] += this.from[node - 1];
    this.children = new Int32Array(this.from[size + 1]);
    for (let node = 1; node < size; node++) {
      if (total[node] > 0) this.children[this.from[parent[node] + 1]++] = node;
    }
    this.left = new Float64Array(size);
    this.depth = new Int32Array(size);
    let largest = 0;
    for (let node = 0; node < size; node++) {
      if (node > 0 && total[node] > 0 && this.isDifference) largest = Math.max(largest, Math.abs(this.change(node)));
      const [first, end] = [this.from[node], this.from[node + 1]];
      if (end - first > 1) {
        this.children.subarray(first, end).sort((a, b) => ranks[method[a]] - ranks[method[b]]);
      }
      let left = this.left[node];
      for (let at = first; at < end; at++) {
        const child = this.children[at];
        this.left[child] = left;
        this.depth[child] = this.depth[node] + 1;
        left += total[child];
      }
    }
    this.largestChange = largest;
    return this;
  }

  /** Returns the count of the outermost matching nodes among a node and its descendants. */
  matching(within, isMatch) {
    let sum = 0;
    const open = [within];
    while (open.length > 0) {
      const node = open.pop();
      if (node > 0 && isMatch[this.method[node]]) {
        sum += this.total[node];
        continue;
      }
      for (let at = this.from[node]; at < this.from[node + 1]; at++) open.push(this.children[at]);
    }
    return sum;
  }
}
