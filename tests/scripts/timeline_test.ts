import { assertEquals, assertStringIncludes } from "@std/assert";
import { renderTimeline, type Timeline } from "../../scripts/timeline.ts";

const timeline: Timeline = {
  title: "One <lock> & more",
  labelMeans: "n: a number",
  toMs: 1000,
  lanes: [
    {
      label: "worker 1",
      spans: [
        { kind: "held", fromMs: 0, toMs: 500, label: "17", title: "fence 17" },
        { kind: "held", fromMs: 600, toMs: 601, label: "18", isWrong: true },
      ],
      marks: [{ kind: "kill", atMs: 500, label: "killed" }, {
        kind: "thaw",
        atMs: 990,
        label: "goes on",
      }],
      measures: [{ fromMs: 500, toMs: 600, label: "100 ms" }],
    },
  ],
  notes: ["a note"],
};

Deno.test("a timeline is an SVG file with everything in it, and with what it names escaped", () => {
  const svg = renderTimeline(timeline);
  assertEquals(svg.startsWith("<svg ") && svg.endsWith("</svg>\n"), true);
  assertStringIncludes(svg, ">One &lt;lock&gt; &amp; more</text>");
  for (const words of ["worker 1", "17", "18", "killed", "goes on", "100 ms", "a note", "0.5 s"]) {
    assertStringIncludes(svg, `>${words}</text>`);
  }
  assertStringIncludes(svg, "<title>fence 17</title>");
  assertStringIncludes(svg, ">holds the lock; n: a number</text>");
  const tags = (pattern: RegExp) => svg.match(pattern)?.length ?? 0;
  assertEquals(tags(/<g[ >]/g), tags(/<\/g>/g), "every group is closed");
});

Deno.test("the legend names what is in the picture, and nothing else", () => {
  const svg = renderTimeline(timeline);
  assertEquals([svg.includes("SIGKILL"), svg.includes("SIGSTOP")], [true, false]);
  assertEquals([svg.includes("beside another one"), svg.includes(">frozen<")], [true, false]);
});

Deno.test("labels of marks stay within the picture", () => {
  const svg = renderTimeline(timeline);
  const [, width] = /viewBox="0 0 (\d+)/.exec(svg)!;
  const [, at] = /<text x="([\d.]+)"[^>]*>goes on</.exec(svg)!;
  assertEquals(Number(at) + "goes on".length * 7 < Number(width), true);
});
