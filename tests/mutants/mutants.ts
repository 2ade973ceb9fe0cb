/**
 * The code, broken on purpose: each mutant is one rule less, and `deno task mutants` shows which test sees it.
 *
 * @module
 */

/** One change for the worse. */
export interface Mutant {
  /** What the mutant does wrong. */
  readonly name: string;
  /** The file that is changed. */
  readonly file: string;
  /** Text that stands there exactly once. */
  readonly search: string;
  /** What stands there instead. */
  readonly replace: string;
  /** The test files that are tried, in this order; those of the file if absent. */
  readonly catchers?: readonly string[];
}

/** The tests that are tried for a file unless the mutant names others. */
export const CATCHERS: Readonly<Record<string, readonly string[]>> = {
  "src/core/record.ts": ["tests/core/record_test.ts"],
  "src/core/codec.ts": ["tests/core/codec_test.ts", "tests/core/register_test.ts"],
  "src/core/clock.ts": ["tests/core/clock_test.ts", "tests/core/lease_test.ts"],
  "src/core/lifecycle.ts": ["tests/core/lifecycle_test.ts", "tests/core/lease_test.ts"],
  "src/core/holding.ts": ["tests/core/lease_test.ts", "tests/core/lock_test.ts"],
  "src/core/heartbeat.ts": ["tests/core/lease_test.ts"],
  "src/core/acquire.ts": [
    "tests/core/acquire_test.ts",
    "tests/core/lock_test.ts",
    "tests/core/gate_test.ts",
  ],
  "src/core/gate.ts": ["tests/core/gate_test.ts", "tests/core/acquire_test.ts"],
  "src/core/lock.ts": ["tests/core/lock_test.ts"],
  "src/core/register.ts": ["tests/core/register_test.ts"],
  "src/core/sightings.ts": ["tests/core/sightings_test.ts", "tests/core/register_test.ts"],
  "src/core/told_time.ts": ["tests/core/told_time_test.ts", "tests/core/register_test.ts"],
  "src/core/fence_gate.ts": ["tests/contract/memory_test.ts"],
  "src/storage/redis_script.ts": ["tests/storage/redis_script_test.ts"],
  "src/storage/redis_fence.ts": ["tests/storage/redis_fence_test.ts"],
};

const RECORD = "src/core/record.ts";
const SCRIPT = "src/storage/redis_script.ts";

/** Rules of the record machine. */
const record: readonly Mutant[] = [
  {
    name: "acquire is not idempotent",
    file: RECORD,
    search: "h.token === command.token && isLive(h, now));\n  if (again)",
    replace: "h.token === command.token && isLive(h, now));\n  if (again && false)",
  },
  {
    name: "the fence is a counter that dies with the record",
    file: RECORD,
    search: "return Math.max(record.fence + 1, now.us);",
    replace: "return record.fence + 1;",
  },
  {
    name: "the fence is the clock alone",
    file: RECORD,
    search: "return Math.max(record.fence + 1, now.us);",
    replace: "return now.us;",
  },
  {
    name: "release needs no token",
    file: RECORD,
    search: "const holder = record.holders.find((h) => h.token === command.token);",
    replace: "const holder = record.holders[0];",
  },
  {
    name: "a late renewal moves the expiry back",
    file: RECORD,
    search: "expiresAtMs: Math.max(holder.expiresAtMs, expiry(ttlMs, now)),",
    replace: "expiresAtMs: expiry(ttlMs, now),",
  },
  {
    name: "a spent token is granted again",
    file: RECORD,
    search: "if (spentEnd(record, command.token, now)) return",
    replace: "if (false) return",
  },
  {
    name: "a hand-over keeps the giver's token",
    file: RECORD,
    search: "    token: command.newToken,\n",
    replace: "",
  },
  {
    name: "renew and adopt do not compare the fence: a baton has two winners",
    file: RECORD,
    search: "h.token === was.token && h.fence === was.fence && isLive(h, now)",
    replace: "h.token === was.token && isLive(h, now)",
  },
  {
    name: "a dead holding is revived by its renewal",
    file: RECORD,
    search: "h.token === was.token && h.fence === was.fence && isLive(h, now)",
    replace: "h.token === was.token && h.fence === was.fence",
  },
  {
    name: "the span that observers wait for shrinks with a shorter renewal",
    file: RECORD,
    search: "ttlMs: Math.max(ttlMs, Math.min(holder.ttlMs, leftMs)),",
    replace: "ttlMs,",
  },
  {
    name: "a holder that has renewed is presumed dead",
    file: RECORD,
    search: "d.fence === h.fence && d.beats === h.beats",
    replace: "d.fence === h.fence",
  },
  {
    name: "a renewal does not count as a beat",
    file: RECORD,
    search: "    beats: holder.beats + 1,\n    expiresAtMs: Math.max",
    replace: "    expiresAtMs: Math.max",
  },
  {
    name: "a holding is live at its expiry",
    file: RECORD,
    search: "return now.us < entry.expiresAtMs * 1000;",
    replace: "return now.us <= entry.expiresAtMs * 1000;",
  },
  {
    name: "expiries are rounded down",
    file: RECORD,
    search: "return Math.ceil(now.us / 1000) + spanMs + now.marginMs;",
    replace: "return Math.floor(now.us / 1000) + spanMs + now.marginMs;",
  },
  {
    name: "somebody passes a live fair waiter",
    file: RECORD,
    search: "...ahead.filter((t) => t.fair)",
    replace: "...ahead.filter(() => false)",
  },
  {
    name: "refreshing a ticket loses its place",
    file: RECORD,
    search: "place < 0 ? [...tickets, ticket] : tickets.map((t, i) => i === place ? ticket : t);",
    replace: "[...tickets.filter((t) => t.token !== token), ticket];",
  },
  {
    name: "a ticket stays after its grant",
    file: RECORD,
    search: "tickets: tickets.filter((t) => t.token !== token),",
    replace: "tickets,",
  },
  {
    name: "a ticket stays after its release",
    file: RECORD,
    search: "t.token !== command.token && isLive(t, now)",
    replace: "isLive(t, now)",
  },
  {
    name: "a late eviction touches a later holder",
    file: RECORD,
    search: "h.fence <= command.maxFence && (",
    replace: "(",
  },
  {
    name: "an evicted token is not spent",
    file: RECORD,
    search: "    spent: spend(record.spent, spent, now),\n",
    replace: "",
  },
  {
    name: "what min-hold keeps can be renewed",
    file: RECORD,
    search: "      token: null,\n      ttlMs: command.keepMs,",
    replace: "      ttlMs: command.keepMs,",
  },
  {
    name: "permits beyond the capacity",
    file: RECORD,
    search: "sumPermits(live) + command.permits <= command.capacity",
    replace: "sumPermits(live) < command.capacity",
  },
  {
    name: "another capacity is granted",
    file: RECORD,
    search: "if (other) {",
    replace: "if (false) {",
  },
  {
    name: "waiters shorten the holders' leases",
    file: RECORD,
    search: "return { record: { ...record, tickets: next }, outcome: held };",
    replace:
      "return { record: { ...record, tickets: next, holders: record.holders.map((h) => ({ ...h, expiresAtMs: Math.min(h.expiresAtMs, expiry(command.ttlMs, now)) })) }, outcome: held };",
  },
  {
    name: "waiters ask again after the last expiry",
    file: RECORD,
    search: "const first = Math.min(...entries",
    replace: "const first = Math.max(...entries",
  },
  {
    name: "a 257th holder",
    file: RECORD,
    search: "if (live.length >= MAX_ENTRIES) {",
    replace: "if (live.length > MAX_ENTRIES) {",
  },
  {
    name: "nobody is woken",
    file: RECORD,
    search: "wake: fits ? first.token : undefined",
    replace: "wake: undefined",
  },
  {
    name: "spent tokens are never forgotten",
    file: RECORD,
    search: "while (all.length > MAX_SPENT ||",
    replace: "while (",
  },
];

/** The text of a record. */
const codec: readonly Mutant[] = [
  {
    name: "foreign text is a free lock",
    file: "src/core/codec.ts",
    search: "    return decodeRecord(value);\n  } catch (cause) {",
    replace:
      "    return decodeRecord(value);\n  } catch (cause) {\n    if (cause) return EMPTY_RECORD;",
  },
  {
    name: "lines of a later version are dropped",
    file: "src/core/codec.ts",
    search: "  lines.push(...record.extra);\n",
    replace: "",
  },
  {
    name: "another major version is read",
    file: "src/core/codec.ts",
    search: "`^holdfast 1 ${INTEGER}$`",
    replace: "`^holdfast \\\\d ${INTEGER}$`",
  },
  {
    name: "a record that lost its last lines is read",
    file: "src/core/codec.ts",
    search: "  if (!isWhole) throw",
    replace: "  if (!text) throw",
  },
];

/** Time, and the life of a lease. */
const life: readonly Mutant[] = [
  {
    name: "the deadline counts from the reply",
    file: "src/core/holding.ts",
    search: "granted(grant.sentAt, grant.ttlMs)",
    replace: "granted(settings.clock.read(), grant.ttlMs)",
  },
  {
    name: "a renewal's deadline counts from its reply",
    file: "src/core/holding.ts",
    search: "renewed(this.#life, sentAt, command.ttlMs, now)",
    replace: "renewed(this.#life, now, command.ttlMs, now)",
  },
  {
    name: "no margin for the clocks' rates",
    file: "src/core/lifecycle.ts",
    search: "return ttlMs * (1 - RATE_MARGIN) - RESOLUTION_MS;",
    replace: "return ttlMs;",
  },
  {
    name: "a shorter renewal shortens the trust",
    file: "src/core/lifecycle.ts",
    search: "reachesFurther ? trust : life.trust",
    replace: "trust",
  },
  {
    name: "the longest hold is not kept",
    file: "src/core/lifecycle.ts",
    search: 'if (holdLeftMs(life, terms, now) <= 0) return "max-hold";',
    replace: "",
  },
  {
    name: "a holder looks at the wall clock alone",
    file: "src/core/clock.ts",
    search: "Math.max(now.monotonicMs - since.monotonicMs, now.wallMs - since.wallMs, 0)",
    replace: "Math.max(now.wallMs - since.wallMs, 0)",
  },
  {
    name: "a holder looks at the monotonic clock alone",
    file: "src/core/clock.ts",
    search: "Math.max(now.monotonicMs - since.monotonicMs, now.wallMs - since.wallMs, 0)",
    replace: "Math.max(now.monotonicMs - since.monotonicMs, 0)",
  },
  {
    name: "an observer believes the clock that runs ahead",
    file: "src/core/clock.ts",
    search: "Math.min(now.monotonicMs - since.monotonicMs, now.wallMs - since.wallMs)",
    replace: "Math.max(now.monotonicMs - since.monotonicMs, now.wallMs - since.wallMs)",
  },
  {
    name: "loss is noticed only when a renewal is answered",
    file: "src/core/heartbeat.ts",
    search: "if (lease.loseIfOver(now)) continue;",
    replace: "",
  },
  {
    name: "a renewal may take longer than the lease",
    file: "src/core/holding.ts",
    search: "const limitMs = Math.min(this.requestTimeoutMs, this.leftMs(sentAt));",
    replace: "const limitMs = this.requestTimeoutMs;",
  },
  {
    name: "renewals go on after the release",
    file: "src/core/holding.ts",
    search: "    this.#loop?.remove(this);\n",
    replace: "",
  },
  {
    name: "the gate stays shut when the lease is lost",
    file: "src/core/holding.ts",
    search: "    this.grant.turn?.leave();\n",
    replace: "",
    catchers: ["tests/core/gate_test.ts", "tests/core/lock_test.ts", "tests/core/acquire_test.ts"],
  },
  {
    name: "a failed renewal is an unhandled rejection",
    file: "src/core/heartbeat.ts",
    search:
      "      (error) => lease.answered(sentAt, command, { error }),\n    );\n    lease.renewing(done",
    replace: "    );\n    lease.renewing(done",
  },
  {
    name: "failed renewals are repeated in a busy loop",
    file: "src/core/holding.ts",
    search: "this.#life = renewalFailed(this.#life, now, pauseMs);",
    replace: "this.#life = renewalFailed(this.#life, now, 0 * pauseMs);",
    catchers: ["tests/core/holding_test.ts"],
  },
  {
    name: "a refused renewal is ignored",
    file: "src/core/holding.ts",
    search: "      this.#lose(answer.outcome.reason);\n",
    replace: "",
  },
  {
    name: "a second release asks the storage again",
    file: "src/core/holding.ts",
    search: "this.#releasing = Promise.resolve(false);",
    replace: "this.#releasing = undefined;",
  },
  {
    name: "a failed release cannot be tried again",
    file: "src/core/holding.ts",
    search: "      this.#releasing = undefined;\n      this.emit",
    replace: "      this.emit",
  },
  {
    name: "a detached lease stays armed",
    file: "src/core/holding.ts",
    search: '    this.#end("detached", "detached");\n',
    replace: "",
  },
  {
    name: "min-hold counts on the larger clock",
    file: "src/core/holding.ts",
    search: "return elapsedForObserverMs(this.#grantedAt,",
    replace: "return elapsedForHolderMs(this.#grantedAt,",
  },
];

/** Asking, waiting and giving up. */
const asking: readonly Mutant[] = [
  {
    name: "an aborted acquire leaves an orphan",
    file: "src/core/acquire.ts",
    search: "    if (this.#mayHaveLeft) this.#compensate();\n",
    replace: "",
  },
  {
    name: "a late copy of an abandoned acquire is not cleaned up",
    file: "src/core/acquire.ts",
    search: "      if (abandoned.length === 0) return;\n",
    replace: "      if (abandoned.length >= 0) return;\n",
  },
  {
    name: "an outage is taken for contention",
    file: "src/core/acquire.ts",
    search: 'if (onUnavailable === "throw" || !isTransient(error)) throw error;',
    replace: 'if (onUnavailable === "throw") return { reason: "held", retryAfterMs: 1 };',
  },
  {
    name: "a time-out that saw only faults says that others hold",
    file: "src/core/acquire.ts",
    search: "if (!this.#refused && this.#fault) return this.#fault;",
    replace: "",
  },
  {
    name: "the ttl is cut to seconds",
    file: "src/core/acquire.ts",
    search: "      ttlMs: askedMs,\n      label,",
    replace: "      ttlMs: Math.floor(askedMs / 1000) * 1000,\n      label,",
    catchers: ["tests/core/acquire_test.ts", "tests/core/lease_test.ts", "tests/core/lock_test.ts"],
  },
  {
    name: "a retry comes with a new token",
    file: "src/core/acquire.ts",
    search: "        this.#fault = error;\n        sleepMs = backoffMs",
    replace:
      "        this.#fault = error;\n        this.#renewToken();\n        sleepMs = backoffMs",
  },
  {
    name: "a grant that came too late is used",
    file: "src/core/acquire.ts",
    search: "if (leftMs(granted(sentAt, ttlMs), this.#settings, now) <= 0) {",
    replace: "if (false) {",
  },
  {
    name: "a hint for another waiter wakes us",
    file: "src/core/acquire.ts",
    search: "else if (next === waiterMark(this.#token)) this.#hear();",
    replace: "else this.#waker.wake();",
  },
  {
    name: "a renewal goes on after its lease was lost",
    file: "src/core/holding.ts",
    search: "for (const { abort } of this.#renewals) {",
    replace: 'if (status !== "lost") for (const { abort } of this.#renewals) {',
  },
  {
    name: "a refresh makes a waiter forget what it lost",
    file: "src/core/acquire.ts",
    search: "if (wasHinted) this.#races++;",
    replace: "this.#races = wasHinted ? this.#races + 1 : 0;",
  },
  {
    name: "a hint is lost on who came back in front",
    file: "src/core/acquire.ts",
    search: "if (this.#isHinted || Math.min(blockedMs, dueMs) <= 0) return",
    replace: "if (Math.min(blockedMs, dueMs) <= 0) return",
  },
  {
    name: "whoever is always too late waits for ever",
    file: "src/core/acquire.ts",
    search: "fair: settings.fair || this.#isPassedOver,",
    replace: "fair: settings.fair,",
  },
  {
    name: "others wait long for one that was passed over and does not come",
    file: "src/core/acquire.ts",
    search: "Math.min(queueMs, PASSED_OVER_MS, ttlMs)",
    replace: "queueMs",
  },
  {
    name: "who was too late follows each hint at once",
    file: "src/core/acquire.ts",
    search: "if (this.#races === 0 || this.#isPassedOver) return",
    replace: "return",
  },
  {
    name: "a fresh ticket does not become a fair one",
    file: "src/core/record.ts",
    search: "if (isFresh && old.fair === fair)",
    replace: "if (isFresh)",
  },
  {
    name: "everybody in the process talks to the storage",
    file: "src/core/gate.ts",
    search: "      if (trustedMs > 0) return trustedMs;\n",
    replace: "",
  },
  {
    name: "a dead waiter blocks the gate for ever",
    file: "src/core/gate.ts",
    search: "this.#place.trustedMs = (now) => span.ms - elapsedForHolderMs(span.since, now);",
    replace: "this.#place.trustedMs = () => span.ms;",
  },
  {
    name: "with() throws the result away",
    file: "src/core/lock.ts",
    search: "{ reason: lost.reason, value }",
    replace: "{ reason: lost.reason }",
  },
  {
    name: "with() does not release",
    file: "src/core/lock.ts",
    search: "  await lease.release().catch(() => {});\n",
    replace: "",
  },
  {
    name: "a baton for another lock is taken",
    file: "src/core/lock.ts",
    search: "if (name !== this.name) {",
    replace: "if (false) {",
  },
];

/** Registers. */
const register: readonly Mutant[] = [
  {
    name: "a refusal is given from memory",
    file: "src/core/register.ts",
    search: "        if (!fresh) {\n          known = undefined;\n          continue;\n        }\n",
    replace: "",
  },
  {
    name: "a lost write is taken for done",
    file: "src/core/register.ts",
    search: "|| ++faults > 1) throw error;\n        written = { ok: false };",
    replace: "|| ++faults > 1) throw error;\n        return next.outcome;",
  },
  {
    name: "a write that was applied is taken for lost",
    file: "src/core/register.ts",
    search: "if (fresh && attempted?.value === seen.value) return attempted!.outcome;",
    replace: "",
  },
  {
    name: "the skew of the clocks is not added",
    file: "src/core/register.ts",
    search: "        this.#nowUs(seen),\n        this.maxClockSkewMs,\n",
    replace: "        this.#nowUs(seen),\n        0,\n",
  },
  {
    name: "a record may go before a late request has",
    file: "src/core/register.ts",
    search: "return Math.max(this.#retentionMs, ttlMs + 2 * this.maxClockSkewMs);",
    replace: "return this.#retentionMs;",
  },
  {
    name: "an observer waits for its own ttl, not the holder's",
    file: "src/core/sightings.ts",
    search: "(s.ttlMs + this.#maxClockSkewMs)",
    replace: "(command.ttlMs + this.#maxClockSkewMs)",
  },
  {
    name: "an observer allows for no difference of rates",
    file: "src/core/sightings.ts",
    search: "const OBSERVER_MARGIN = 1.01;",
    replace: "const OBSERVER_MARGIN = 1;",
  },
  {
    name: "an observer keeps counting over a renewal",
    file: "src/core/sightings.ts",
    search: "s.fence === fence && s.beats === beats)",
    replace: "s.fence === fence)",
  },
  {
    name: "an observer keeps counting over an end",
    file: "src/core/sightings.ts",
    search: "    this.#byName.delete(name);\n    if (record",
    replace: "    if (record",
  },
  {
    name: "a write that a fenced transaction blocks is taken for a lost race",
    file: "src/core/register.ts",
    search: "if (written.blocked) return",
    replace: "if (!written) return",
  },
  {
    name: "a write that may be on its way is forgotten over a fenced transaction",
    file: "src/core/register.ts",
    search: 'if (command.type === "acquire" && !mayHaveWritten) {',
    replace: 'if (command.type === "acquire") {',
  },
  {
    name: "what blocks a release is taken for a refusal",
    file: "src/core/register.ts",
    search: 'if (command.type === "acquire" && !mayHaveWritten) {',
    replace: "if (!mayHaveWritten) {",
  },
  {
    name: "a lock is granted on a glance",
    file: "src/core/register.ts",
    search: "return isRefusal ? outcome : undefined;",
    replace: "return outcome;",
  },
  {
    name: "a glance decides after a write whose outcome is unknown",
    file: "src/core/register.ts",
    search: "if (faults === 0 && this.#expectsRefusal",
    replace: "if (this.#expectsRefusal",
  },
  {
    name: "a min-hold is counted from a time that is over",
    file: "src/core/register.ts",
    search: " || command.keepMs > 0 || ",
    replace: " || ",
  },
  {
    name: "a release from memory drops who may be alive by the server's clock",
    file: "src/core/told_time.ts",
    search: "(now.monotonicMs - told.since.monotonicMs) / OBSERVER_MARGIN",
    replace: "elapsedForHolderMs(told.since, now)",
  },
  {
    name: "what the server said counts for ever",
    file: "src/core/told_time.ts",
    search: "if (elapsedForHolderMs(told.askedAt, now) > MAX_AGE_MS) return undefined;\n",
    replace: "",
  },
];

/** The Redis script, and what is fenced. */
const redis: readonly Mutant[] = [
  {
    name: "script: acquire is not idempotent",
    file: SCRIPT,
    search: "local again = live_holder(token)\n  if again then",
    replace: "local again = live_holder(token)\n  if false then",
  },
  {
    name: "script: the fence is a counter",
    file: SCRIPT,
    search: "fence = max(fence + 1, now_us)",
    replace: "fence = fence + 1",
  },
  {
    name: "script: expiry moves back",
    file: SCRIPT,
    search: "holder.expires = max(holder.expires, now_ms + ttl)",
    replace: "holder.expires = now_ms + ttl",
  },
  {
    name: "script: a spent token is granted",
    file: SCRIPT,
    search: "if spent_end(token) then return { 'spent' } end",
    replace: "",
  },
  {
    name: "script: release needs no token",
    file: SCRIPT,
    search: "if not holder and h.token == token then",
    replace: "if not holder then",
  },
  {
    name: "script: somebody passes a fair waiter",
    file: SCRIPT,
    search: "if queue[i].fair == '1' then must_wait",
    replace: "if queue[i].fair == '2' then must_wait",
  },
  {
    name: "script: an eviction without a bound",
    file: SCRIPT,
    search: "tonumber(h.fence) <= max_fence and",
    replace: "true and",
  },
  {
    name: "script: a holding is live at its expiry",
    file: SCRIPT,
    search:
      "beats = beats, expires = expires, label = label,\n    is_live = now_us < expires * 1000",
    replace:
      "beats = beats, expires = expires, label = label,\n    is_live = now_us <= expires * 1000",
  },
  {
    name: "script: nobody is woken",
    file: SCRIPT,
    search: "redis.pcall('PUBLISH', channel .. ':' .. mark, mark)",
    replace: "",
  },
  {
    name: "fencedExec looks at the token alone",
    file: "src/storage/redis_fence.ts",
    search: "'\\\\nh ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ', 1, true)",
    replace: "'\\\\nh ' .. ARGV[1] .. ' ', 1, true)",
  },
  {
    name: "fencedExec runs again what was run",
    file: "src/storage/redis_fence.ts",
    search: "if known then return { 'ran', known } end",
    replace: "",
  },
  {
    name: "FenceGate lets a smaller fence pass",
    file: "src/core/fence_gate.ts",
    search: "if (highest > fence) {",
    replace: "if (false) {",
  },
];

/** All of them. */
export const mutants: readonly Mutant[] = [
  ...record,
  ...codec,
  ...life,
  ...asking,
  ...register,
  ...redis,
];
