/** When a command is told to end, and when it is killed. */
import { assert, assertEquals } from "@std/assert";
import { LeaseLostError, type LossReason } from "../../src/core/errors.ts";
import { Guard, type Guarded } from "../../src/cli/guard.ts";

/** A lease by the real clock, and what a guard did about it. */
class Scene implements Guarded {
  readonly strikes: string[] = [];
  readonly atMs: number[] = [];
  readonly extended: number[] = [];
  readonly #controller = new AbortController();
  #deadlineMs: number;

  constructor(ttlMs: number) {
    this.#deadlineMs = performance.now() + ttlMs;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  remainingMs(): number {
    const leftMs = Math.max(0, this.#deadlineMs - performance.now());
    // As the real one, it finds out when it is asked.
    if (leftMs === 0) this.lose("expired");
    return this.signal.aborted ? 0 : leftMs;
  }

  renew(ttlMs: number): void {
    this.#deadlineMs = performance.now() + ttlMs;
  }

  lose(reason: LossReason): void {
    if (!this.signal.aborted) this.#controller.abort(new LeaseLostError("It is lost", { reason }));
  }

  guard(graceMs: number): Guard {
    const startMs = performance.now();
    return new Guard(this, graceMs, {
      strike: (signal, cause) => {
        this.strikes.push(`${signal} ${cause}`);
        this.atMs.push(performance.now() - startMs);
      },
      extend: (leftMs) => this.extended.push(leftMs),
    });
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

Deno.test("SIGTERM comes the grace before the deadline, SIGKILL at the deadline, each once", async () => {
  const scene = new Scene(300);
  const guard = scene.guard(100);
  await pause(500);
  guard.stop();
  assertEquals(scene.strikes, ["SIGTERM renewals-failed", "SIGKILL expired"]);
  assertEquals(guard.cause, "renewals-failed");
  const [toldMs, killedMs] = scene.atMs as [number, number];
  assert(toldMs >= 199 && toldMs < 300, `Told after ${toldMs} ms`);
  assert(killedMs >= 299, `Killed after ${killedMs} ms`);
});

Deno.test("a lease that is renewed is not touched, and whoever asked hears of the new deadline", async () => {
  const scene = new Scene(300);
  const guard = scene.guard(100);
  for (let i = 0; i < 5; i++) {
    await pause(100);
    scene.renew(300);
  }
  guard.stop();
  await pause(400);
  assertEquals([scene.strikes, guard.cause], [[], undefined]);
  assert(scene.extended.length >= 3);
});

for (const reason of ["evicted", "superseded"] as const) {
  Deno.test(`a lease that is ${reason} is SIGTERM at once, and SIGKILL after the grace`, async () => {
    const scene = new Scene(10_000);
    const guard = scene.guard(100);
    scene.lose(reason);
    assertEquals(scene.strikes, [`SIGTERM ${reason}`]);
    await pause(200);
    guard.stop();
    assertEquals(scene.strikes, [`SIGTERM ${reason}`, `SIGKILL ${reason}`]);
  });
}

Deno.test("without a grace there is SIGKILL only", async () => {
  const scene = new Scene(100);
  const guard = scene.guard(0);
  await pause(200);
  guard.stop();
  assertEquals(scene.strikes, ["SIGKILL expired"]);
});

Deno.test("a command that was told to end is not killed if a renewal comes after all", async () => {
  const scene = new Scene(200);
  const guard = scene.guard(100);
  await pause(150);
  scene.renew(10_000);
  await pause(200);
  guard.stop();
  assertEquals(scene.strikes, ["SIGTERM renewals-failed"]);
});

Deno.test("a guard that is stopped does nothing more", async () => {
  const scene = new Scene(100);
  scene.guard(50).stop();
  await pause(200);
  scene.lose("evicted");
  assertEquals(scene.strikes, []);
});
