/**
 * What the project promises: its guarantees (G1 to G12), and what the five systems that it takes after do
 * (S1 to S5), one observable behaviour a line. Tests say `// covers: G3` or `// covers: S1.14`;
 * `deno task promises` lists who covers what and fails for a line that has neither a test nor a reason.
 */

/** Guarantees of the library. */
export const guarantees: readonly (readonly [id: string, text: string])[] = [
  [
    "G1",
    "At most the recorded `capacity` of permits of live holders per lock at any instant of the storage's time.",
  ],
  [
    "G2",
    "Fences strictly increase in grant order while the record lives, whatever the clocks do; and across its loss when the clock that stamps the next grant is ahead of the one that stamped the last.",
  ],
  [
    "G3",
    "A fenced write by a holder that was released, evicted or replaced is never applied; where the product has a clock (Redis, Postgres, MongoDB) also none by one that expired.",
  ],
  ["G4", "Only the holder's token (or an explicit evict) changes or removes its holding."],
  [
    "G5",
    "The local deadline is never later than the storage's expiry, while the ratio of the clock rates is within 1 %, on client-time products skew is within `maxClockSkewMs`, and on server-time products the server's clock does not step forward (a failover to a faster clock is such a step).",
  ],
  [
    "G6",
    "`signal` aborts no later than the deadline (as soon as code runs after a freeze; `isHeld()` is right even before, except where a runtime's clocks stand still between I/O), and never after a clean release.",
  ],
  [
    "G7",
    "After `release()` settles nothing more is sent by us, and no timer, listener, socket or map entry is left, apart from the bounded memory of section 6; what a client library still resends cannot grant.",
  ],
  [
    "G8",
    "When the faults stop, a waiter gets a free lock within ttl + 2 x `maxClockSkewMs` + one poll (`pollMs.max`).",
  ],
  [
    "G9",
    "An aborted, timed-out or failed acquire leaves nothing behind longer than one ttl (plus skew) after the last copy of its requests arrived, and normally nothing at all.",
  ],
  ["G10", "With `fair`, grants follow the queue; a dead waiter delays it at most `queueMs`."],
  [
    "G11",
    'A lost reply, a duplicated or late request, or a client library\'s own resend never turns our own lock into "held by someone else".',
  ],
  [
    "G12",
    "A malformed or foreign record is an error with the key in it, never a free lock and never overwritten.",
  ],
];

/**
 * Behaviours of: S1 dynamodb_lease, S2 rustango distributed_lock, S3 arcly_http dlock, S4 klauthed locks,
 * S5 dlock.
 */
export const behaviours: readonly (readonly [id: string, text: string])[] = [
  ["S1.1", "A granted lease starts its own periodic extension at once; nothing to opt in."],
  [
    "S1.2",
    "First extension runs one full period after the grant (no immediate tick); default period = ttl/2, ttl 60 s.",
  ],
  [
    "S1.3",
    "Missed ticks are delayed, not burst: after a stall the next extension is a full period later.",
  ],
  [
    "S1.4",
    "Each successful extension resets the lease to the full ttl and installs a new version (UUID); the old version can no longer extend or delete.",
  ],
  [
    "S1.5",
    'Any extension error ends extension for good (seed: "stop on error, TODO retries"); superset: retry until the local deadline, then end.',
  ],
  [
    "S1.6",
    "`isHealthy()` is true while extension runs and false once it has died, e.g. contact with the DB lost.",
  ],
  [
    "S1.7",
    "`release()` resolves only after the backend confirmed deletion, and surfaces failure as an error.",
  ],
  ["S1.8", "`release()` passes our current version to the delete, which is conditional on it."],
  [
    "S1.9",
    "`release()` waits for an in-flight extension, and none can run between (version mutex held through the delete).",
  ],
  [
    "S1.10",
    "`release()` frees the in-process guard **before** the backend delete, so local waiters get no unfair start over other processes.",
  ],
  ["S1.11", "`release()` drops the per-key local lock entry from memory when nobody else uses it."],
  ["S1.12", "Documented: release-then-immediately-acquire in a loop can starve other processes."],
  ["S1.13", "Explicit `release()` disables release-on-drop: exactly one release."],
  [
    "S1.14",
    "Drop without release triggers an asynchronous background release (local guard freed, then delete); its errors do not throw.",
  ],
  [
    "S1.15",
    "The extension task holds only a weak reference: a dropped lease is never kept alive by its own renewal.",
  ],
  [
    "S1.16",
    "Two acquires in one client contend on a per-key in-process lock, not on the DB; separate clients contend in the DB; clones share.",
  ],
  [
    "S1.17",
    "`tryAcquire` returns none at once if held locally or remotely; backend errors propagate.",
  ],
  [
    "S1.18",
    "`acquire` waits without limit: local queue first, then poll with cooldown (default 1 s).",
  ],
  [
    "S1.19",
    "`acquireTimeout(maxWait)` bounds local + remote wait together, trims the last sleep, tries once more, then errors.",
  ],
  [
    "S1.20",
    "Put condition: version absent OR expiry < now; an expired row is taken at once without waiting for the DB's TTL reaper.",
  ],
  [
    "S1.21",
    "Builder: table `leases`; ttl ≥ 2 s; extend period > 0 and < ttl; violations rejected when configured.",
  ],
  [
    "S1.22",
    'Build checks table exists, single string hash key `key`, TTL on `lease_expiry`; messages name what is wrong ("missing", "key", "type", "time to live").',
  ],
  [
    "S1.23",
    "tests: try_acquire, local_try_acquire, extend_past_ttl (ttl 2 s, still held at 10 s), acquire, release_try_acquire, local_acquire, acquire_timeout (100 ms), acquire_expired_lease, is_healthy (table deleted → false within 4 s), 4 init checks.",
  ],
  ["S2.1", "`new(cache)`: factory over any cache; cheap to clone; clones see the same locks."],
  ["S2.2", "`tryAcquire(name, ttl)`: one non-waiting attempt → guard or none."],
  [
    "S2.3",
    "Acquisition is decided by one atomic gate (incr==1 on `lock:<name>`) with ttl set atomically (INCRBY + EXPIRE NX).",
  ],
  ["S2.4", "Failed attempts never lengthen the holder's ttl (EXPIRE NX)."],
  [
    "S2.5",
    "A per-acquire token is stored beside the gate with the same ttl (`lock:<name>:token`).",
  ],
  ["S2.6", "Any backend error on acquire = not acquired (none), no throw."],
  [
    "S2.7",
    "Crashed or leaked holder: lock frees itself after ttl; the next acquirer waits at most ttl.",
  ],
  [
    "S2.8",
    "`release()` is conditional on our token; a holder whose ttl passed never frees its successor (test: ttl 30 ms, wait 80 ms, late release, third acquirer still blocked).",
  ],
  ["S2.9", "`release()` is idempotent; a second call does nothing (and no backend traffic)."],
  ["S2.10", "`release()` never throws on backend failure."],
  [
    "S2.11",
    'Drop without release: lock stays until ttl and a debug line "dropped without release(); waiting for TTL" with the key.',
  ],
  [
    "S2.12",
    "`withLock(name, ttl, body)`: runs body only if acquired, returns its value; none if held; body not called.",
  ],
  [
    "S2.13",
    "`withLock` releases after the body, also when the body returns nothing; on panic seed falls back to ttl (superset: release in finally, rethrow).",
  ],
  [
    "S2.14",
    "No auto-renew in this mode: ttl must exceed the work or the work be idempotent — documented.",
  ],
  [
    "S2.15",
    "Different names never collide (note: seed's own key scheme does: lock `a:token` vs token of `a`).",
  ],
  [
    "S2.16",
    "In-memory backend for tests, with its weaker atomicity documented; Redis atomic across replicas.",
  ],
  [
    "S2.17",
    'Scheduler use: N replicas, one runs the tick, the rest skip; "best-effort exactly-once" stated.',
  ],
  [
    "S2.18",
    "Tests: first_acquirer, second_blocked, release_lets_next, different_names, with_lock runs+releases, with_lock none when blocked, release idempotent, ttl_expiry (50/120 ms), late release no clobber, with_lock unit.",
  ],
  [
    "S3.1",
    "Backend contract of three calls: `tryAcquire(key, token, ttlMs) → fence|null`, `release(key, token) → bool`, `renew(key, token, ttlMs) → bool`; each may fail with an error.",
  ],
  [
    "S3.2",
    "`tryAcquire` is atomic (single script/transaction): if free, store token with ttl **and** take the next fence.",
  ],
  [
    "S3.3",
    "Fence is a cluster-wide strictly increasing u64, public on the guard (`fencingToken`).",
  ],
  ["S3.4", "Downstream rule: store compares and rejects a stale fence (GC-pause scenario)."],
  ["S3.5", "`release` removes only if our token is stored (compare-and-delete)."],
  ["S3.6", "`renew` extends, to the full ttl, only if our token is stored."],
  [
    "S3.7",
    "Lock is a constant value `{name, ttlMs}`; backend is passed at call time (DI), so one definition serves all environments.",
  ],
  ["S3.8", "Key is namespaced: `arcly:lock:<name>`."],
  ["S3.9", "`tryLock` never waits; none = held elsewhere or backend down."],
  [
    "S3.10",
    'Backend down on acquire: counter `dlock_backend_errors_total` +1, warn "lock backend unreachable — treating as not acquired", return none ("nobody runs" beats "everybody runs").',
  ],
  [
    "S3.11",
    "Heartbeat starts on acquire, period max(ttl/3, 1 ms), first beat skipped (not immediate).",
  ],
  ["S3.12", '`renew=false`: warn "lock lost — heartbeat stopping", stop for good.'],
  ["S3.13", '`renew` error: warn "lock renew failed", keep beating.'],
  ["S3.14", "Drop: heartbeat aborted first, then asynchronous compare-and-delete."],
  ["S3.15", 'Release failure on drop: warn "lock release failed (TTL will reap)", no throw.'],
  [
    "S3.16",
    "Fresh random 32-hex owner token per attempt, never reused (superset: crypto-random; the seed hashes time+thread+seq+pid).",
  ],
  [
    "S3.17",
    "Stated uses: outbox relay, cron, schema migration, leader election. Seed has no tests.",
  ],
  [
    "S4.1",
    "`acquire(key, ttl)`: guard if free **or expired**, none if a live holder; contention is never an error; a crashed holder can never wedge a key.",
  ],
  ["S4.2", "Only backend failure is an error."],
  ["S4.3", "Guard exposes `key()` and `token()` (unique per acquisition, typed)."],
  ["S4.4", "`release()` eager, idempotent, surfaces backend errors; in-memory never errors."],
  [
    "S4.5",
    "Release frees only if our token still owns the key; stale guard (release or drop) cannot free a fresh holder.",
  ],
  ["S4.6", "Live iff now < expiry (at exactly expiry the key is takeable)."],
  [
    "S4.7",
    "Expiry driven by an injected clock; a fixed clock makes tests deterministic with no sleeping; default = system clock.",
  ],
  [
    "S4.8",
    "Unrepresentable ttl → error `invalid TTL for lock '<key>'`; Redis also rejects ttl ≤ 0.",
  ],
  ["S4.9", "In-memory guard: drop releases synchronously (next acquire succeeds at once)."],
  [
    "S4.10",
    'Redis and MongoDB guards: drop does not release; debug line "…dropped without explicit release; relying on TTL expiry"; ttl reclaims.',
  ],
  ["S4.11", "A guard once released (even if the call failed) does not act again on drop."],
  ["S4.12", "One guard type over memory/Redis/MongoDB; backends are optional features."],
  [
    "S4.13",
    "Redis: `SET key token NX PX ttl` + Lua compare-and-delete. Mongo: compare-and-upsert with TTL; filter `{_id, expires_at ≤ now}` upsert, duplicate-key 11000 = contention, collection `locks`.",
  ],
  ["S4.14", "Lock table survives a panicking holder (poison recovered)."],
  [
    "S4.15",
    "manager `releaseToken(key, token) → bool` frees by token without the guard (cross-process release).",
  ],
  [
    "S4.16",
    "Tests: second blocked (and key() right); releases on drop; explicit release; expires (10 s: blocked at 5, free at 11); stale guard does not steal, then fresh drop frees.",
  ],
  ["S5.1", "Builder: `name`, `owner`, `duration`, `provider`; optional `retry` delay (default 0)."],
  [
    "S5.2",
    "`with(async token => …)`: acquire (waits until granted), auto-renew, run, release; returns the closure's result.",
  ],
  ["S5.3", "Closure runs only after acquisition and receives the fencing token of that lease."],
  [
    "S5.4",
    "Manual mode: `acquire()` → lease; caller renews and releases (`lease.renew()`, `lease.release()`), no background work.",
  ],
  [
    "S5.5",
    "Provider and Lease are open interfaces; DynamoDB provider built from client + table name, own lease and retry types; error module.",
  ],
  [
    "S5.6",
    "`acquire()` while held → AlreadyAcquired carrying a retry context; `retry(ctx)` continues from it.",
  ],
  [
    "S5.7",
    'Staleness: context = (lease id, holder\'s own duration, local monotonic instant first seen); before it elapses only "row absent" can win; after it, CAS on the unchanged lease id takes over.',
  ],
  [
    "S5.8",
    "If the holder renewed or released meanwhile, takeover fails (AlreadyReleased) and observation restarts.",
  ],
  [
    "S5.9",
    "Takeover of a dead lease raises the token by exactly 1 (test 0→1 after 1 s lease, 2 s sleep); renew changes lease id, keeps the token.",
  ],
  [
    "S5.10",
    "Token must detect stale use; **superset: strictly increasing across releases too** (upstream restarts at 0 — do not copy; its back-to-back test asserting 0,0 must become n, n+1).",
  ],
  [
    "S5.11",
    "Renew every duration/3 in the same task; a closure that blocks the loop can lose the lease and the token detects it — documented.",
  ],
  [
    "S5.12",
    "Renew or release of a lost lease → AlreadyReleased; provider failure → ProviderError; `with` then errors after the closure has ended (superset: abort signal at once).",
  ],
  ["S5.13", "No wall-clock time is stored; durations only."],
  [
    "S5.14",
    "tests: fresh, renew keeps token/changes id, reject held, relock released, recover dead, with once, back-to-back, two concurrent `with`, chaos 1000 workers (5 s lease, 1 ms retry, ≤1 ms hold; try_lock never fails; counter==1000).",
  ],
];

/** Why a line has no test. */
export const reasons: Readonly<Record<string, string>> = {
  "S1.12": "a sentence in the README: do not release and acquire again in a tight loop",
  "S5.13":
    "another choice, by option C7: expiries are stored, and a holder that was watched unchanged for its span is dead whatever the clocks say (S5.7)",
};
