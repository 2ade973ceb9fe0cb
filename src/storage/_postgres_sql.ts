/**
 * What is said to Postgres. Every command is one statement, so that it needs no session and no transaction
 * of its own, and works through a transaction pooler. All values go in and come out as text, in columns of
 * one word, which no option of a client changes.
 *
 * Nobody waits for a row: `SKIP LOCKED` makes a record that is being written look changed, and a guard
 * that a fenced transaction holds look missing, which is then told apart by counting.
 *
 * @module
 */

/** The statements for one pair of tables. */
export interface Statements {
  /** The record table, quoted. */
  readonly records: string;
  /** The guard table, quoted. */
  readonly guards: string;
  /** The function that a fenced transaction calls, quoted. */
  readonly fenceFunction: string;
  /** `$1` name. */
  readonly read: string;
  /** `$1` name, `$2` instant of the read in µs, `$3`.. as {@linkcode replace}, without `$10`. */
  readonly create: string;
  /**
   * `$1` name, `$2` version, `$3` value, `$4` fence, `$5` retain until in ms, `$6` and `$7` fences and
   * tokens granted, `$8` channel, `$9` payload or nothing, `$10` fences ended.
   */
  readonly replace: string;
  /** `$1` names as JSON. */
  readonly readAll: string;
  /** `$1` name, version, value and retain_until_ms of each as JSON; for records that keep their fence. */
  readonly replaceAll: string;
  /** `$1` channel, `$2` payload. */
  readonly notify: string;
  /** `$1` name, `$2` token, `$3` fence. */
  readonly checkFence: string;
  /** Creates what is missing. */
  readonly migrate: string;
}

const NOW_US = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/** How old a read may be for an absent record to be created after it, in microseconds. */
const ABSENCE_US = 30_000_000;

/** Records stay for this much longer, so that none can come and go within {@linkcode ABSENCE_US}. */
const PURGE_AFTER = "1 minute";

/**
 * Rounded up to the hour: the indexed column then stays the same over most renewals, which keeps the
 * update within its page (a heap-only tuple; PostgreSQL documentation, 73.7).
 */
const retainUntil = (ms: string): string => `to_timestamp((${ms} / 3600000 + 1) * 3600)`;

/**
 * Composes the statements.
 *
 * @param schema the schema's name
 * @param table the record table's name; the guard table and the function are named after it
 * @returns the statements
 */
export function statementsFor(schema: string, table: string): Statements {
  const qualified = (name: string): string => `${quoteIdentifier(schema)}.${quoteIdentifier(name)}`;
  const records = qualified(table);
  const guards = qualified(`${table}_guard`);
  const fenceFunction = qualified(`${table}_fence_check`);
  const granted = `
  granted AS (
    INSERT INTO ${guards} (name, fence, token)
    SELECT $1::text, g.fence, g.token
    FROM done, unnest($6::text::bigint[], $7::text::text[]) AS g (fence, token)
  )`;
  const woken =
    `(SELECT pg_notify($8::text, $9::text) FROM done WHERE $9::text <> '')::text AS woken`;
  return {
    records,
    guards,
    fenceFunction,
    read: `
SELECT r.version::text AS version, r.value AS value, ${NOW_US}::text AS us,
  pg_is_in_recovery()::text AS replica
FROM (SELECT) AS one LEFT JOIN ${records} AS r ON r.name = $1::text`,
    // Two writers of the same new name: the second waits for the first to commit, at most lock_timeout.
    create: `
WITH now AS MATERIALIZED (
    SELECT set_config('lock_timeout', '100ms', true) AS patience,
      ${NOW_US} - $2::text::bigint BETWEEN 0 AND ${ABSENCE_US}
        AND NOT EXISTS (SELECT FROM ${records} WHERE name = $1::text) AS is_absent
  ),
  left_over AS MATERIALIZED (
    SELECT g.fence FROM now, ${guards} AS g WHERE is_absent AND g.name = $1::text
    FOR UPDATE OF g SKIP LOCKED
  ),
  state AS MATERIALIZED (
    SELECT is_absent, is_absent AND (SELECT count(*) FROM left_over) <>
      (SELECT count(*) FROM ${guards} WHERE name = $1::text) AS is_blocked
    FROM now
  ),
  done AS (
    INSERT INTO ${records} (name, version, value, fence, retain_until)
    SELECT $1::text, gen_random_uuid(), $3::text, $4::text::bigint, ${
      retainUntil("$5::text::bigint")
    }
    FROM state WHERE is_absent AND NOT is_blocked
    ON CONFLICT (name) DO NOTHING
    RETURNING version
  ),
  ended AS (
    DELETE FROM ${guards} AS g USING done
    WHERE g.name = $1::text AND g.fence IN (SELECT fence FROM left_over)
  ),${granted},
  purged AS (
    DELETE FROM ${records} WHERE name IN (
      SELECT name FROM ${records} WHERE retain_until < now() - interval '${PURGE_AFTER}'
      ORDER BY retain_until LIMIT 2 FOR UPDATE SKIP LOCKED
    )
    RETURNING name
  ),
  purged_guards AS (
    DELETE FROM ${guards} WHERE (name, fence) IN (
      SELECT g.name, g.fence FROM ${guards} AS g WHERE g.name IN (SELECT name FROM purged)
      FOR UPDATE SKIP LOCKED
    )
  )
SELECT (SELECT version FROM done)::text AS version, is_blocked::text AS blocked, ${woken}
FROM state`,
    replace: `
WITH mine AS MATERIALIZED (
    SELECT r.name FROM ${records} AS r WHERE r.name = $1::text AND r.version = $2::text::uuid
    FOR UPDATE SKIP LOCKED
  ),
  free AS MATERIALIZED (
    SELECT g.fence FROM mine, ${guards} AS g
    WHERE g.name = mine.name AND g.fence = ANY ($10::text::bigint[])
    FOR UPDATE OF g SKIP LOCKED
  ),
  state AS MATERIALIZED (
    SELECT name, (SELECT count(*) FROM free) <>
      (SELECT count(*) FROM ${guards} WHERE name = $1::text AND fence = ANY ($10::text::bigint[]))
      AS is_blocked
    FROM mine
  ),
  done AS (
    UPDATE ${records} AS r
    SET version = gen_random_uuid(), value = $3::text, fence = $4::text::bigint,
      retain_until = ${retainUntil("$5::text::bigint")}
    FROM state WHERE r.name = state.name AND NOT is_blocked
    RETURNING r.version
  ),
  ended AS (
    DELETE FROM ${guards} AS g USING done
    WHERE g.name = $1::text AND g.fence IN (SELECT fence FROM free)
  ),${granted}
SELECT (SELECT version FROM done)::text AS version,
  (SELECT is_blocked FROM state)::text AS blocked, ${woken}`,
    readAll: `
SELECT r.name AS name, r.version::text AS version, r.value AS value, ${NOW_US}::text AS us,
  pg_is_in_recovery()::text AS replica
FROM ${records} AS r WHERE r.name IN (SELECT jsonb_array_elements_text($1::text::jsonb))`,
    replaceAll: `
WITH next AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset($1::text::jsonb)
      AS n (name text, version uuid, value text, retain_until_ms bigint)
  ),
  mine AS MATERIALIZED (
    SELECT n.* FROM ${records} AS r JOIN next AS n ON r.name = n.name AND r.version = n.version
    FOR UPDATE OF r SKIP LOCKED
  )
UPDATE ${records} AS r
SET version = gen_random_uuid(), value = mine.value, retain_until = ${
      retainUntil("retain_until_ms")
    }
FROM mine WHERE r.name = mine.name
RETURNING r.name AS name`,
    notify: `SELECT pg_notify($1::text, $2::text)::text AS woken`,
    checkFence: `SELECT ${fenceFunction}($1::text, $2::text, $3::text::bigint)::text AS held`,
    migrate: migration(schema, records, guards, fenceFunction),
  };
}

/**
 * Looks before it creates, so that a role without the right to create can run it too once all is there.
 * There are no foreign keys, because they would make a renewal lock the guard row.
 */
function migration(schema: string, records: string, guards: string, fenceFunction: string): string {
  return `DO ${
    quoteLiteral(`
BEGIN
  IF to_regnamespace(${quoteLiteral(quoteIdentifier(schema))}) IS NULL THEN
    CREATE SCHEMA ${quoteIdentifier(schema)};
  END IF;
  IF to_regclass(${quoteLiteral(records)}) IS NULL THEN
    CREATE TABLE ${records} (
      name text COLLATE "C" PRIMARY KEY,
      version uuid NOT NULL,
      value text NOT NULL,
      fence bigint NOT NULL,
      retain_until timestamptz NOT NULL
    ) WITH (fillfactor = 50);
    CREATE INDEX ON ${records} (retain_until);
  END IF;
  IF to_regclass(${quoteLiteral(guards)}) IS NULL THEN
    CREATE TABLE ${guards} (
      name text COLLATE "C" NOT NULL,
      fence bigint NOT NULL,
      token text NOT NULL,
      PRIMARY KEY (name, fence)
    );
  END IF;
  IF to_regprocedure(${quoteLiteral(`${fenceFunction}(text,text,bigint)`)}) IS NULL THEN
    CREATE FUNCTION ${fenceFunction}(lock_name text, holder_token text, holder_fence bigint)
    RETURNS void LANGUAGE plpgsql AS ${quoteLiteral(fenceCheckBody(records, guards))};
  END IF;
END
`)
  }`;
}

/**
 * The guard is locked first and the record read after, by a statement of its own: in READ COMMITTED it
 * then sees everything that was renewed before the lock, and nothing can end the holding after it. A
 * transaction with a snapshot (REPEATABLE READ, SERIALIZABLE) may not see a grant or a renewal that came
 * after its start; it fails with 40001, to be tried again with a new one, rather than with a wrong answer.
 */
function fenceCheckBody(records: string, guards: string): string {
  return `
DECLARE
  has_snapshot boolean := current_setting('transaction_isolation') IN
    ('repeatable read', 'serializable');
  is_guarded boolean;
  last_fence bigint;
  held_until timestamptz;
BEGIN
  PERFORM FROM ${guards} AS g
  WHERE g.name = lock_name AND g.fence = holder_fence AND g.token = holder_token
  FOR SHARE;
  is_guarded := FOUND;
  SELECT r.fence, (
      SELECT to_timestamp((string_to_array(line, ' '))[8]::numeric / 1000)
      FROM unnest(string_to_array(r.value, chr(10))) AS line
      WHERE starts_with(line, 'h ' || holder_token || ' ' || holder_fence || ' ')
    )
  INTO last_fence, held_until
  FROM ${records} AS r WHERE r.name = lock_name;
  IF is_guarded AND clock_timestamp() < held_until THEN
    RETURN;
  END IF;
  IF has_snapshot AND (
      (is_guarded AND transaction_timestamp() < held_until)
      OR (NOT is_guarded AND coalesce(last_fence, 0) < holder_fence)
    ) THEN
    RAISE EXCEPTION 'Cannot check lock "%" as the snapshot of the transaction is too old', lock_name
      USING ERRCODE = '40001', HINT = 'Retry the transaction, with the check as its first statement';
  END IF;
  RAISE EXCEPTION 'Cannot write under lock "%" as fence % is not held any more', lock_name, holder_fence
    USING ERRCODE = 'HF001';
END
`;
}

/**
 * Quotes an identifier.
 *
 * @param name the identifier
 * @returns the identifier in double quotes
 */
function quoteIdentifier(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

function quoteLiteral(text: string): string {
  return `'${text.replaceAll("'", "''")}'`;
}
