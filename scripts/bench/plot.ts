/**
 * Two kinds of plots as SVG, small enough to read: horizontal bars, and lines on logarithmic axes.
 *
 * @module
 */

/** One bar. */
export interface Bar {
  readonly label: string;
  /** Its length, or what is said instead of it. */
  readonly value: number | string;
  /** Whether it is ours. */
  readonly isOurs?: boolean | undefined;
}

/** One line; both coordinates above 0. */
export interface Curve {
  readonly label: string;
  readonly points: readonly (readonly [x: number, y: number])[];
}

/** What stands around the lines. */
export interface Axes {
  readonly title: string;
  readonly x: string;
  readonly y: string;
}

const WIDTH = 760;
const OURS = "#1f6feb";
const OTHERS = "#9aa4af";
const COLORS = [OURS, "#d1572a", "#2f8f4e", "#8a5cc4"];

function escape(text: string): string {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
}

/** A number with three digits that matter. */
export function short(value: number): string {
  if (value >= 10_000) return `${Number((value / 1000).toPrecision(3))}k`;
  return value >= 100 ? `${Math.round(value)}` : `${Number(value.toPrecision(3))}`;
}

function text(x: number, y: number, what: string, more = ""): string {
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" ${more}>${escape(what)}</text>`;
}

function page(height: number, title: string, parts: readonly string[]): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" ` +
    `height="${height}" font-family="system-ui, sans-serif" font-size="13" fill="#24292f">
<rect width="100%" height="100%" fill="#fff"/>
${text(16, 26, title, 'font-size="16" font-weight="600"')}
${parts.join("\n")}
</svg>
`;
}

/** Draws bars from 0 on, with a mark at `mark` where there is one. */
export function bars(title: string, all: readonly Bar[], mark?: number): string {
  const [left, right, top, step] = [270, WIDTH - 70, 44, 26];
  const lengths = all.map(({ value }) => typeof value === "number" ? value : 0);
  const most = Math.max(...lengths, mark ?? 0) || 1;
  const xOf = (value: number): number => left + (right - left) * value / most;
  const height = top + step * all.length + 16;
  const parts = all.flatMap(({ label, value, isOurs }, i) => {
    const y = top + step * i;
    const color = isOurs ? OURS : OTHERS;
    const name = text(left - 10, y + 15, label, 'text-anchor="end"');
    if (typeof value === "string") {
      return [name, text(left + 6, y + 16, value, 'font-size="12" fill="#cf222e"')];
    }
    const width = Math.max(xOf(value) - left, 1).toFixed(1);
    return [
      name,
      `<rect x="${left}" y="${y + 3}" width="${width}" height="17" rx="2" fill="${color}"/>`,
      text(xOf(value) + 6, y + 16, short(value), 'font-size="12" fill="#57606a"'),
    ];
  });
  if (mark !== undefined) {
    const x = xOf(mark).toFixed(1);
    const [y1, y2] = [top - 4, height - 12];
    parts.push(
      `<path d="M${x} ${y1}V${y2}" stroke="#cf222e" stroke-dasharray="4 3" fill="none"/>`,
    );
  }
  return page(height, title, parts);
}

/** The powers of ten around some values. */
function decades(values: readonly number[]): [low: number, high: number] {
  const low = Math.floor(Math.log10(Math.min(...values)) + 1e-9);
  const high = Math.ceil(Math.log10(Math.max(...values)) - 1e-9);
  return [low, Math.max(high, low + 1)];
}

/** Draws lines over logarithmic axes. */
export function lines({ title, x, y }: Axes, curves: readonly Curve[]): string {
  const all = curves.filter((curve) => curve.points.length > 0);
  const [left, right, top, bottom] = [80, WIDTH - 190, 60, 330];
  const points = all.flatMap((curve) => curve.points);
  const [xLow, xHigh] = decades(points.map(([value]) => value));
  const [yLow, yHigh] = decades(points.map(([, value]) => value));
  const xOf = (v: number) => left + (right - left) * (Math.log10(v) - xLow) / (xHigh - xLow);
  const yOf = (v: number) => bottom - (bottom - top) * (Math.log10(v) - yLow) / (yHigh - yLow);
  const parts: string[] = [];
  const grid = (d: string) => `<path d="${d}" stroke="#e3e7eb" fill="none"/>`;
  for (let power = xLow; power <= xHigh; power++) {
    const at = xOf(10 ** power);
    parts.push(grid(`M${at.toFixed(1)} ${top}V${bottom}`));
    parts.push(text(at, bottom + 20, short(10 ** power), 'text-anchor="middle" fill="#57606a"'));
  }
  for (let power = yLow; power <= yHigh; power++) {
    const at = yOf(10 ** power);
    parts.push(grid(`M${left} ${at.toFixed(1)}H${right}`));
    parts.push(text(left - 8, at + 4, short(10 ** power), 'text-anchor="end" fill="#57606a"'));
  }
  all.forEach((curve, i) => {
    const color = COLORS[i % COLORS.length]!;
    const at = curve.points.map(([px, py]) => `${xOf(px).toFixed(1)},${yOf(py).toFixed(1)}`);
    parts.push(
      `<polyline points="${at.join(" ")}" fill="none" stroke="${color}" stroke-width="2"/>`,
    );
    for (const point of at) {
      const [cx, cy] = point.split(",");
      parts.push(`<circle cx="${cx}" cy="${cy}" r="3.5" fill="${color}"/>`);
    }
    parts.push(
      `<rect x="${right + 16}" y="${top + 22 * i}" width="12" height="12" fill="${color}"/>`,
    );
    parts.push(text(right + 34, top + 11 + 22 * i, curve.label));
  });
  parts.push(text((left + right) / 2, bottom + 44, x, 'text-anchor="middle"'));
  parts.push(text(left, top - 12, y));
  return page(390, title, parts);
}
