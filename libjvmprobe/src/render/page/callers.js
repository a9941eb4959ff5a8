// Caller tree, whose nodes are created only when they are displayed. The complete tree would have a node for each frame
// of each stack, which for a large profile means tens of millions.

class Callers extends Tree {
  /** Counts each sample in one path of the tree. The path leads from the method's innermost call outwards or,
   * without a method, from the innermost frame outwards. */
  constructor(selected, method) {
    super(selected);
    this.forest = selected.forest;
    const { parent, method: methods } = this.forest;
    const from = new Int32Array(parent.length);
    for (let node = 1; node < from.length; node++) {
      from[node] = method === null || methods[node] === method ? node : from[parent[node]];
    }
    Object.assign(this, { parent: [], method: [], total: [], depth: [], left: [], children: [] });
    if (this.isDifference) this.base = [];
    /** For each tree node, the forest nodes that it represents. The count of a forest node includes only the
     * samples whose path goes through the tree node at this forest node. The root represents the forest nodes
     * at which the paths begin. */
    this.nodeCounts = [];
    this.kinds = new CallerKinds(this);
    const all = new NodeCounts(this.isDifference);
    const before = selected.baseOwn ?? new Float64Array(from.length);
    selected.own.forEach((count, node) => {
      if (count === 0 && before[node] === 0) return;
      if (from[node] > 0 && this.forest.kind[from[node]] !== GROUP) all.add(from[node], count, before[node]);
    });
    this.add(-1, -1, all);
  }

  add(parent, method, nodeCounts) {
    const treeNode = this.parent.length;
    this.parent.push(parent);
    this.method.push(method);
    this.nodeCounts.push(nodeCounts);
    this.children.push(null);
    this.depth.push(parent < 0 ? 0 : this.depth[parent] + 1);
    this.left.push(0);
    const sum = (counts) => (counts.length === 1 ? counts[0] : counts.reduce((a, b) => a + b, 0));
    this.total.push(sum(nodeCounts.counts));
    this.base?.push(sum(nodeCounts.base));
    return treeNode;
  }

  /** Returns the children of a tree node, which are created at the first call. */
  childrenOf(treeNode) {
    return (this.children[treeNode] ??= this.open(treeNode));
  }

  open(treeNode) {
    const { parent, method, kind } = this.forest;
    const nodeCounts = this.nodeCounts[treeNode];
    // The children of the root represent the root's own forest nodes. The children of any other tree node represent the
    // callers of its forest nodes.
    const callerOf = (node) => (treeNode === 0 ? node : parent[node]);
    const isOne = (caller) => caller > 0 && kind[caller] !== GROUP;
    if (nodeCounts.nodes.length === 1) {
      // Most tree nodes represent a single forest node.
      const caller = callerOf(nodeCounts.nodes[0]);
      if (!isOne(caller) || this.total[treeNode] === 0) return [];
      const child = this.add(treeNode, method[caller], nodeCounts.at(caller));
      this.left[child] = this.left[treeNode];
      return [child];
    }
    const by = new Map();
    nodeCounts.nodes.forEach((node, row) => {
      const caller = callerOf(node);
      if (!isOne(caller)) return;
      if (!by.has(method[caller])) by.set(method[caller], new NodeCounts(this.isDifference));
      by.get(method[caller]).add(caller, nodeCounts.counts[row], nodeCounts.base?.[row]);
    });
    const ranks = this.names.ranks();
    const methods = [...by.keys()].sort((a, b) => ranks[a] - ranks[b]);
    const children = methods.map((number) => this.add(treeNode, number, by.get(number)));
    let left = this.left[treeNode];
    for (const child of children) {
      this.left[child] = left;
      left += this.total[child];
    }
    // Callers that occur only in the base have no width.
    return children.filter((child) => this.total[child] > 0);
  }

  layOut() {
    this.largestChange = 0;
    if (this.isDifference) {
      const near = this.childrenOf(0).flatMap((child) => [child, ...this.childrenOf(child)]);
      for (const treeNode of near) this.largestChange = Math.max(this.largestChange, Math.abs(this.change(treeNode)));
    }
    return this;
  }

  matching(within, isMatch) {
    const { parent, method, kind } = this.forest;
    const isAround = new Uint8Array(parent.length);
    for (let node = 1; node < isAround.length; node++) {
      isAround[node] = kind[node] !== GROUP && (isMatch[method[node]] || isAround[parent[node]]) ? 1 : 0;
    }
    const { nodes, counts } = this.nodeCounts[within];
    return nodes.reduce((sum, node, row) => sum + (isAround[node] ? counts[row] : 0), 0);
  }
}

/** Forest nodes without duplicates, with the counts of the profile and of the base. */
class NodeCounts {
  constructor(isDifference) {
    this.nodes = [];
    this.counts = [];
    this.base = isDifference ? [] : null;
    this.rows = null;
  }

  add(node, count, before) {
    // Up to eight nodes are searched linearly.
    if (this.rows === null && this.nodes.length > 8) this.rows = new Map(this.nodes.map((other, row) => [other, row]));
    const row = this.rows === null ? this.nodes.indexOf(node) : (this.rows.get(node) ?? -1);
    if (row >= 0) {
      this.counts[row] += count;
      if (this.base) this.base[row] += before;
      return;
    }
    this.rows?.set(node, this.nodes.length);
    this.nodes.push(node);
    this.counts.push(count);
    this.base?.push(before);
  }

  /** Returns these counts, which must be those of a single node, as the counts of `node`. */
  at(node) {
    const nodeCounts = new NodeCounts(false);
    Object.assign(nodeCounts, { nodes: [node], counts: this.counts, base: this.base });
    return nodeCounts;
  }
}

/** Counts by kind of code, with the interface of KindCounts, computed on demand. */
class CallerKinds {
  constructor(tree) {
    this.tree = tree;
    this.known = [];
  }

  parts(treeNode) {
    const { forest, nodeCounts } = this.tree;
    const sums = new Map();
    nodeCounts[treeNode].nodes.forEach((node, row) => {
      const count = nodeCounts[treeNode].counts[row];
      if (count > 0) sums.set(forest.kind[node], (sums.get(forest.kind[node]) ?? 0) + count);
    });
    return [...sums].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  }

  most(treeNode) {
    return (this.known[treeNode] ??= this.parts(treeNode)[0]?.[0] ?? GROUP - 1);
  }
}
