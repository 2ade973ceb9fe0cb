/**
 * Draws what several processes did with one lock as an SVG picture: one lane per process, time from left to
 * right, held spans, and the marks of what was done to them.
 *
 * @module
 */

/** What a process was doing for a while. */
export type SpanKind =
  /** It holds the lock. */
  | "held"
  /** It is dead, and the lock is still taken. */
  | "dead"
  /** It is frozen. */
  | "frozen"
  /** It goes on as if it held a lock that it has lost. */
  | "zombie";

/** What happened at one instant. */
export type MarkKind =
  /** The process was killed. */
  | "kill"
  /** The process was frozen. */
  | "freeze"
  /** The process went on. */
  | "thaw"
  /** A write was refused for its stale fence. */
  | "refused"
  /** A write that nobody checked overwrote others. */
  | "overwrote";

/** A span of one lane. */
export interface Span {
  /** What it is. */
  readonly kind: SpanKind;
  /** When it begins, in milliseconds on the axis of the picture. */
  readonly fromMs: number;
  /** When it ends. */
  readonly toMs: number;
  /** A few characters, drawn in the span, or below it if they do not fit. */
  readonly label?: string | undefined;
  /** Whether it must not be as it is. */
  readonly isWrong?: boolean | undefined;
  /** Shown by a viewer that is pointed at it. */
  readonly title?: string | undefined;
}

/** A mark on one lane. */
export interface Mark {
  /** What it is. */
  readonly kind: MarkKind;
  /** When. */
  readonly atMs: number;
  /** A few words, drawn above the lane's bar. */
  readonly label?: string | undefined;
}

/** A measured distance, drawn below a lane's bar. */
export interface Measure {
  /** From when. */
  readonly fromMs: number;
  /** Until when. */
  readonly toMs: number;
  /** What it says. */
  readonly label: string;
}

/** One process. */
export interface Lane {
  /** Its name. */
  readonly label: string;
  /** A second line under it. */
  readonly detail?: string | undefined;
  /** When it started; the beginning of the picture if absent. */
  readonly fromMs?: number | undefined;
  /** When it ended; the end of the picture if absent. */
  readonly toMs?: number | undefined;
  /** What it did. */
  readonly spans: readonly Span[];
  /** What happened to it. */
  readonly marks: readonly Mark[];
  /** What is worth measuring. */
  readonly measures?: readonly Measure[] | undefined;
}

/** A picture. */
export interface Timeline {
  /** The heading. */
  readonly title: string;
  /** A line under the heading. */
  readonly subtitle?: string | undefined;
  /** What the numbers in the spans are, for the legend. */
  readonly labelMeans?: string | undefined;
  /** The end of the time axis, which begins at 0, in milliseconds. */
  readonly toMs: number;
  /** What spans are called in the legend, where that is something else. */
  readonly names?: Partial<Readonly<Record<SpanKind, string>>> | undefined;
  /** From top to bottom. */
  readonly lanes: readonly Lane[];
  /** Lines at the bottom. */
  readonly notes?: readonly string[] | undefined;
}

const WIDTH = 1480;
const LEFT = 148;
const RIGHT = 40;
const TOP = 104;
const LANE = 74;
const BAR = 26;
const LEGEND_ROW = 26;

const INK = "#1b2430";
const SOFT = "#6b7788";
const LINE = "#e3e8ee";
const RED = "#d32f2f";
const ICE = "#3f86d0";
const AMBER = "#d97f00";

/** Colours of lanes, told apart by all common kinds of sight (Okabe and Ito, 2008, darkened for text). */
const COLOURS = ["#0072b2", "#c2570c", "#00805f", "#9a4f84", "#7a6a00", "#3f6fb5", "#8a5a2b"];

const COLOUR_OF: Readonly<Record<MarkKind | SpanKind, string>> = {
  held: INK,
  dead: RED,
  frozen: ICE,
  zombie: AMBER,
  kill: RED,
  freeze: ICE,
  thaw: AMBER,
  refused: "#2e7d32",
  overwrote: RED,
};

const KINDS: Readonly<Record<SpanKind, string>> = {
  held: "holds the lock",
  dead: "dead, the lock is still taken",
  frozen: "frozen",
  zombie: "lost the lock and goes on",
};

const MARKS: Readonly<Record<MarkKind, string>> = {
  kill: "SIGKILL",
  freeze: "SIGSTOP",
  thaw: "SIGCONT",
  refused: "stale write refused",
  overwrote: "unchecked write lands",
};

/**
 * Draws a picture.
 *
 * @param timeline what to draw
 * @returns the text of an SVG file, in need of no other file
 */
export function renderTimeline(timeline: Timeline): string {
  const { lanes, toMs, title, subtitle, notes = [] } = timeline;
  const bottom = TOP + lanes.length * LANE;
  const height = bottom + 80 + LEGEND_ROW + notes.length * 19;
  const x = (ms: number): number =>
    round(LEFT + (WIDTH - LEFT - RIGHT) * Math.min(Math.max(ms, 0), toMs) / toMs);

  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" ` +
    `viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escape(title)}" ` +
    `font-family="Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif">`,
    definitions(),
    `<rect width="${WIDTH}" height="${height}" fill="#ffffff"/>`,
    text(28, 42, title, { size: 22, weight: 650 }),
    subtitle ? text(28, 66, subtitle, { size: 13, fill: SOFT }) : "",
    axis(toMs, x, bottom),
    ...lanes.map((lane, i) =>
      drawLane(lane, TOP + i * LANE, COLOURS[i % COLOURS.length]!, x, toMs)
    ),
    legend(timeline, bottom + 58),
    ...notes.map((note, i) =>
      text(28, bottom + 84 + LEGEND_ROW + i * 19, note, { size: 12.5, fill: SOFT })
    ),
    "</svg>",
    "",
  ].filter((part) => part !== "").join("\n") + "\n";
}

/** Patterns and symbols that are used more than once. */
function definitions(): string {
  const stripes = (id: string, colour: string, ground: string): string =>
    `<pattern id="${id}" width="7" height="7" patternUnits="userSpaceOnUse" ` +
    `patternTransform="rotate(45)"><rect width="7" height="7" fill="${ground}"/>` +
    `<rect width="2.6" height="7" fill="${colour}"/></pattern>`;
  return `<defs>${stripes("dead", RED, "#fdecec")}${stripes("frozen", ICE, "#eaf3fc")}${
    stripes("zombie", AMBER, "#fff5e5")
  }</defs>`;
}

function axis(toMs: number, x: (ms: number) => number, bottom: number): string {
  const stepMs = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000]
    .find((step) => toMs / step <= 16) ?? 600_000;
  const parts: string[] = [];
  for (let ms = 0; ms <= toMs; ms += stepMs) {
    const at = x(ms);
    parts.push(
      `<line x1="${at}" y1="${TOP - 14}" x2="${at}" y2="${bottom + 4}" stroke="${LINE}"/>`,
      text(at, bottom + 22, `${ms / 1000} s`, { size: 12, fill: SOFT, anchor: "middle" }),
    );
  }
  parts.push(
    `<line x1="${LEFT}" y1="${bottom + 4}" x2="${x(toMs)}" y2="${bottom + 4}" stroke="#aab4c0"/>`,
  );
  return parts.join("\n");
}

function drawLane(
  lane: Lane,
  top: number,
  colour: string,
  x: (ms: number) => number,
  toMs: number,
): string {
  const bar = top + 24;
  const middle = bar + BAR / 2;
  const { fromMs = 0, toMs: endMs = toMs } = lane;
  const places = placesOf(lane.marks, x);
  const parts = [
    text(28, middle - (lane.detail ? 2 : -5), lane.label, { size: 15, weight: 600, fill: colour }),
    lane.detail ? text(28, middle + 14, lane.detail, { size: 11, fill: SOFT }) : "",
    // The life of the process.
    `<line x1="${x(fromMs)}" y1="${middle}" x2="${x(endMs)}" y2="${middle}" stroke="${colour}" ` +
    `stroke-opacity="0.25" stroke-width="3" stroke-linecap="round"/>`,
    ...lane.spans.map((span) => drawSpan(span, bar, colour, x)),
    ...(lane.measures ?? []).map((measure) => drawMeasure(measure, bar + BAR + 9, x)),
    ...lane.marks.map((mark, i) => {
      const isNextTo = i > 0 && places[i]! - places[i - 1]! <= labelWidth(lane.marks[i - 1]!) + 1;
      return drawMark(mark, places[i]!, { bar, x, isNextTo });
    }),
  ];
  return `<g>${parts.filter((part) => part !== "").join("\n")}</g>`;
}

function drawSpan(span: Span, bar: number, colour: string, x: (ms: number) => number): string {
  const { kind, label = "", title, isWrong } = span;
  const from = x(span.fromMs);
  const width = round(Math.max(x(span.toMs) - from, kind === "zombie" ? 5 : 1.5));
  const fill = kind === "held" ? colour : `url(#${kind})`;
  const stroke = isWrong ? RED : kind === "held" ? colour : COLOUR_OF[kind];
  const fits = label.length * 6.6 + 3 <= width;
  const style = { weight: 600, anchor: "middle" } as const;
  return `<g><rect x="${from}" y="${bar}" width="${width}" height="${BAR}" ` +
    `rx="${Math.min(3.5, width / 2)}" fill="${fill}" stroke="${stroke}" ` +
    `stroke-width="${isWrong ? 2 : 0.8}"/>` +
    (title ? `<title>${escape(title)}</title>` : "") +
    (label === "" ? "" : fits
      ? text(from + width / 2, bar + BAR / 2 + 3.8, label, {
        ...style,
        size: 10.5,
        fill: "#ffffff",
      })
      : text(from + width / 2, bar + BAR + 10, label, { ...style, size: 9, fill: colour })) +
    "</g>";
}

/** Labels that would run into each other, or out of the picture, move aside. */
function placesOf(marks: readonly Mark[], x: (ms: number) => number): number[] {
  const places: number[] = [];
  let least = -Infinity;
  for (const mark of marks) {
    const place = Math.max(x(mark.atMs), least);
    places.push(place);
    least = place + labelWidth(mark);
  }
  let most = WIDTH - 8;
  for (let i = marks.length - 1; i >= 0; i--) {
    places[i] = round(Math.min(places[i]!, most - labelWidth(marks[i]!)));
    most = places[i]!;
  }
  return places;
}

function labelWidth({ label = "" }: Mark): number {
  return 30 + label.length * 7.4;
}

function drawMark(
  mark: Mark,
  at: number,
  { bar, x, isNextTo }: { bar: number; x: (ms: number) => number; isNextTo: boolean },
): string {
  const place = x(mark.atMs);
  const colour = COLOUR_OF[mark.kind];
  const y = bar - 14;
  // A label next to another one that pushed it aside hangs on the line of that one.
  const lead = isNextTo && at !== place ? `V${bar - 2}` : `V${bar - 2}L${at} ${y + 8}`;
  const label = mark.label
    ? text(at + 13, y + 4, mark.label, { size: 12, weight: 600, fill: colour })
    : "";
  return `<g><path d="M${place} ${bar + BAR + 3}${lead}" fill="none" stroke="${colour}" ` +
    `stroke-width="1.4"/><g transform="translate(${at} ${y})">${symbol(mark.kind)}</g>${label}</g>`;
}

/** A symbol around 0,0, of some 15 pixels. */
function symbol(kind: MarkKind): string {
  const disc = (fill: string): string => `<circle r="8" fill="${fill}"/>`;
  const stroke = (d: string): string =>
    `<path d="${d}" fill="none" stroke="#ffffff" stroke-width="2.2" stroke-linecap="round"/>`;
  switch (kind) {
    case "kill":
      return disc(RED) + stroke("M-3.2-3.2L3.2 3.2M3.2-3.2L-3.2 3.2");
    case "freeze":
      return disc(ICE) + stroke("M-2.3-3.4V3.4M2.3-3.4V3.4");
    case "thaw":
      return disc(AMBER) + `<path d="M-2.4-4.2L4.4 0L-2.4 4.2Z" fill="#ffffff"/>`;
    case "refused":
      return `<path d="M0-8.5L7.5-5.5V0C7.5 4.5 4 7.5 0 9C-4 7.5-7.5 4.5-7.5 0V-5.5Z" ` +
        `fill="${COLOUR_OF.refused}"/>` + stroke("M-3.2 0L-0.8 2.8L3.4-2.6");
    case "overwrote":
      return `<path d="M0-9L9 7H-9Z" fill="${RED}"/>` + stroke("M0-3V1.6M0 4.4V4.5");
  }
}

function drawMeasure(measure: Measure, y: number, x: (ms: number) => number): string {
  const [from, to] = [x(measure.fromMs), x(measure.toMs)];
  return `<path d="M${from} ${y - 4}V${y + 4}M${to} ${y - 4}V${y + 4}M${from} ${y}H${to}" ` +
    `fill="none" stroke="${SOFT}" stroke-width="1.2"/>` +
    text((from + to) / 2, y + 14, measure.label, { size: 11.5, fill: INK, anchor: "middle" });
}

/** What is in the picture, and nothing else; one row, or two. */
function legend(timeline: Timeline, top: number): string {
  const { lanes, labelMeans, names } = timeline;
  const spans = new Set(lanes.flatMap((lane) => lane.spans.map((span) => span.kind)));
  const marks = new Set(lanes.flatMap((lane) => lane.marks.map((mark) => mark.kind)));
  const parts: string[] = [];
  let at = 28;
  let y = top;
  const add = (picture: string, words: string, width: number): void => {
    const end = at + width + 7 + legendWidth(words);
    if (end > WIDTH) [at, y] = [28, y + LEGEND_ROW];
    parts.push(`<g transform="translate(${round(at)} ${y})">${picture}</g>`);
    parts.push(text(at + width + 7, y + 4.5, words, { size: 12.5 }));
    at = end > WIDTH ? 28 + width + 7 + legendWidth(words) + 22 : end + 22;
  };
  for (const kind of Object.keys(KINDS) as SpanKind[]) {
    if (!spans.has(kind)) continue;
    const isHeld = kind === "held";
    const fill = isHeld ? COLOURS[0] : `url(#${kind})`;
    const name = names?.[kind] ?? KINDS[kind];
    const n = text(13, 3.8, "n", { size: 11, weight: 600, fill: "#ffffff", anchor: "middle" });
    add(
      `<rect y="-8" width="26" height="16" rx="3" fill="${fill}" stroke="${COLOUR_OF[kind]}" ` +
        `stroke-width="0.8"/>${isHeld && labelMeans ? n : ""}`,
      isHeld && labelMeans ? `${name}; ${labelMeans}` : name,
      26,
    );
  }
  if (lanes.some((lane) => lane.spans.some((span) => span.isWrong))) {
    const red = `fill="none" stroke="${RED}" stroke-width="2"`;
    add(`<rect y="-8" width="26" height="16" rx="3" ${red}/>`, "beside another one", 26);
  }
  for (const kind of Object.keys(MARKS) as MarkKind[]) {
    if (marks.has(kind)) add(`<g transform="translate(8 0)">${symbol(kind)}</g>`, MARKS[kind], 16);
  }
  return parts.join("\n");
}

/** Roughly, in pixels. */
function legendWidth(words: string): number {
  return [...words].reduce((sum, letter) => sum + (/[A-Z]/.test(letter) ? 8.7 : 6.3), 0);
}

function text(
  x: number,
  y: number,
  words: string,
  style: { size: number; weight?: number; fill?: string; anchor?: "middle" },
): string {
  const { size, weight, fill = INK, anchor } = style;
  return `<text x="${round(x)}" y="${round(y)}" font-size="${size}" fill="${fill}"` +
    (weight ? ` font-weight="${weight}"` : "") + (anchor ? ` text-anchor="${anchor}"` : "") +
    `>${escape(words)}</text>`;
}

function escape(words: string): string {
  return words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
