// Formats of numbers and names for people, and colours.

const KIND_TITLES = [
  "Compiled Java code",
  "Java code that was inlined into its caller",
  "Java code in the interpreter",
  "Code that the JVM generated for itself: stubs, adapters",
  "The JVM's own native code",
  "Other native code",
  "The kernel",
  "Classes of allocated objects and thrown exceptions",
  "Code without a name",
  "Processes and threads; samples without a stack",
];
/** Hue, saturation and lightness of each kind, on a light background and on a dark one. */
const KIND_COLOURS = [
  [[128, 45, 74], [135, 30, 34]],
  [[178, 42, 74], [184, 36, 32]],
  [[82, 45, 74], [80, 28, 33]],
  [[214, 55, 81], [216, 34, 40]],
  [[48, 72, 73], [44, 44, 34]],
  [[6, 66, 80], [6, 36, 40]],
  [[29, 82, 75], [26, 50, 36]],
  [[280, 45, 83], [282, 26, 42]],
  [[220, 6, 82], [220, 5, 36]],
  [[220, 10, 90], [220, 7, 28]],
];

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");

/** Returns the colour of a kind. The lightness varies with `number`, so that neighbours can be distinguished. */
function kindColour(kind, number = 0) {
  const [hue, saturation, lightness] = KIND_COLOURS[kind][darkScheme.matches ? 1 : 0];
  return `hsl(${hue} ${saturation}% ${lightness + ((number * 7) % 5) - 2}%)`;
}

/** Returns the colour of a change from -1 to 1: red for an increase, blue for a decrease. */
function changeColour(change) {
  const strength = Math.sqrt(Math.abs(change));
  const hue = change > 0 ? 4 : 214;
  return darkScheme.matches
    ? `hsl(${hue} ${Math.round(8 + 50 * strength)}% ${Math.round(28 + 14 * strength)}%)`
    : `hsl(${hue} ${Math.round(20 + 60 * strength)}% ${Math.round(94 - 24 * strength)}%)`;
}

const colours = new Map();
darkScheme.addEventListener("change", () => colours.clear());

/** Returns a colour of page.css for the current colour scheme. */
function colour(name) {
  if (!colours.has(name)) {
    colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }
  return colours.get(name);
}

const whole = new Intl.NumberFormat("en");
const grouped = (number) => whole.format(Math.round(number));

/** Formats a share of `all`. */
function percent(part, all) {
  const share = all > 0 ? (100 * part) / all : 0;
  if (share === 0) return "0 %";
  return `${share.toFixed(share < 0.095 ? 3 : share < 9.95 ? 2 : 1)} %`;
}

function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds >= 60) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toFixed(2)} ms`;
  return `${(seconds * 1e6).toFixed(1)} µs`;
}

function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit < 4) [number, unit] = [number / 1024, unit + 1];
  return `${unit === 0 ? number : number.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

/** Formats a count in the unit of a profile. */
function amount(profile, number) {
  switch (profile.unit) {
    case "bytes":
      return bytes(number);
    case "ns":
      return duration(number / 1e9);
    case "samples": {
      const samples = `${grouped(number)} ${number === 1 ? "sample" : "samples"}`;
      return profile.hertz > 0 ? `${samples}, ${duration(number / profile.hertz)}` : samples;
    }
    default:
      return grouped(number);
  }
}

/** Formats a count briefly, for columns. */
function brief(profile, number) {
  if (profile.unit === "bytes") return bytes(number);
  return profile.unit === "ns" ? duration(number / 1e9) : grouped(number);
}

/** Formats a time of day. The seconds have `digits` decimals, at most three. */
function clock(ms, digits = 0) {
  const date = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  return digits > 0 ? `${time}.${String(date.getMilliseconds()).padStart(3, "0").slice(0, digits)}` : time;
}

/** Fits a method's name into `maxLength` characters. First omits package and parameters, then the class, then
 * cuts the end. */
function fitName(name, kind, maxLength) {
  if (name.length <= maxLength) return name;
  // Names may be longer than the width of any screen.
  let text = name.slice(0, 2000);
  if (kind <= JAVA || kind === CLASS) {
    const parameters = text.indexOf("(");
    const path = parameters < 0 ? text : text.slice(0, parameters);
    const dots = [path.lastIndexOf(".")];
    if (kind !== CLASS && dots[0] > 0) dots.unshift(path.lastIndexOf(".", dots[0] - 1));
    for (const dot of dots) {
      text = path.slice(dot + 1);
      if (text.length <= maxLength) return text;
    }
  }
  return maxLength > 2 ? `${text.slice(0, maxLength - 1)}…` : "";
}

/** Shows a card with a title and lines of text beside the pointer; hides the card if `title` is null. */
function showTip(x, y, title, lines) {
  const tip = document.getElementById("tip");
  tip.hidden = title === null;
  if (tip.hidden) return;
  const heading = document.createElement("b");
  heading.dir = "auto";
  heading.textContent = title.length > 600 ? `${title.slice(0, 600)}…` : title;
  tip.replaceChildren(
    heading,
    ...lines.map((line) => {
      const element = document.createElement("div");
      element.textContent = line;
      return element;
    }),
  );
  const { width, height } = tip.getBoundingClientRect();
  const [right, bottom] = [window.innerWidth - width - 8, window.innerHeight - height - 8];
  tip.style.left = `${Math.max(8, Math.min(x + 14, right))}px`;
  tip.style.top = `${Math.max(8, y + 18 > bottom ? y - height - 14 : y + 18)}px`;
}

/** Sets the size of a canvas in device pixels, so that it is sharp on any screen. */
function fit(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== across) canvas.width = across;
  if (canvas.height !== down) canvas.height = down;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
