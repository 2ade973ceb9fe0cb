/**
 * The commands, with their help.
 *
 * @module
 */
import { COMMON_OPTIONS, type OptionTable } from "./arguments.ts";
import type { Command } from "./command.ts";
import { list, release, RELEASE_OPTIONS, status } from "./look.ts";
import { run, RUN_OPTIONS } from "./run.ts";
import { watch, WATCH_OPTIONS } from "./watch.ts";

/** What `holdfast --help` prints. */
export const OVERVIEW = `\
Runs anything under a lease: of all that use the same name and storage, one runs
at a time, and whoever loses the lease is ended before the next one begins.

  holdfast run NAME -- COMMAND     run a command while holding the lock NAME
  holdfast status NAME             who holds a lock
  holdfast list [PREFIX]           all locks of the storage
  holdfast watch NAME              who gets a lock, as it happens
  holdfast release NAME --force    take a lock away from its holder
  holdfast COMMAND --help          options and an example

Every command takes
  --storage URL   where the locks are: kv:PATH, sqlite:PATH, redis://HOST,
                  rediss://HOST, postgres://HOST/DB, mongodb://HOST/DB,
                  dynamodb://TABLE?region=REGION, upstash+https://HOST,
                  kv+https://HOST; otherwise HOLDFAST_STORAGE, otherwise, under
                  Deno only, a file in the user's state folder
  --json          results and notes as JSON, one object a line
  --quiet         no notes, errors only

Passwords and tokens belong into the environment: into HOLDFAST_STORAGE,
UPSTASH_REDIS_REST_TOKEN, DENO_KV_ACCESS_TOKEN or the variables of AWS.`;

const RUN_HELP = `\
holdfast run NAME [OPTIONS] -- COMMAND ARGS...

Runs a command while holding the lock NAME. It finds HOLDFAST_FENCING_TOKEN in
its environment, a number that rises with every lease.
  --ttl-ms N        a lease lasts N ms unless renewed (30000)
  --wait-ms N       wait at most N ms for the lock; --no-wait: not at all
  --min-hold-ms N   keep the lock for N ms, even if the command ends earlier
  --permits P --capacity C   take P permits of C; all have to say the same C (1)
  --fair            first come, first served
  --label TEXT      what others see of the holder (HOST:PID)
  --grace-ms N      SIGTERM comes this long before the end (a tenth of the ttl)
  --storage URL, --json, --quiet, --help   as in holdfast --help

When renewals fail, the command and all of its process group get SIGTERM before
the lease ends, SIGKILL when it ends. A lease that was taken away ends at once:
SIGTERM, then SIGKILL; until then the command overlaps with the next holder.
Exit status: that of the command; 75 held by others, 74 storage failed, 70 lease
lost, 64 wrong arguments, 126 not executable, 127 not found.

  holdfast run nightly --no-wait --min-hold-ms 60000 -- ./report.sh`;

const STATUS_HELP = `\
holdfast status NAME [--storage URL] [--json]

Shows who holds the lock NAME: label, fence (rises with every lease), the time
until each lease ends unless renewed, and how many wait.

With --json one object: name, fence (the last one), waiters, and holders, each
with fence, label, permits and remainingMs.

  holdfast status nightly --json`;

const LIST_HELP = `\
holdfast list [PREFIX] [--storage URL] [--json]

Lists the locks whose name begins with PREFIX, and who holds them; also those
that were held within the last hour. Reads each of them once. DynamoDB cannot
list without reading its whole table, so there it is not done.

With --json one object: locks, each as in holdfast status.

  holdfast list invoice: --storage redis://localhost`;

const WATCH_HELP = `\
holdfast watch NAME [--every-ms N] [--storage URL] [--json]

Shows grants of the lock NAME until Ctrl-C: on a terminal under a live view, in
a pipe a line each. It looks every 100 ms (files), 250 ms (servers) or second
(where reads cost money), or every N ms; what is shorter may go unseen.

With --json an object a line: event (held, granted or ended), at, name, fence,
label, permits; heldMs when ended; unseen when it was over at the next look.

  holdfast watch nightly | tee -a grants.log`;

const RELEASE_HELP = `\
holdfast release NAME --force [--fence N] [--storage URL] [--json]

Takes the lock NAME away from all its holders, or from the one with fence N.
A holder finds out when it next renews; until then its work overlaps with that
of the next one, unless what they write to checks the fencing token.

With --json one object: name, removed (how many leases).

  holdfast release nightly --force --fence 1763650000000000`;

/** The commands by name. */
export const COMMANDS: Readonly<Record<string, Command<OptionTable>>> = {
  run: { table: RUN_OPTIONS, help: RUN_HELP, perform: run },
  status: { table: COMMON_OPTIONS, help: STATUS_HELP, perform: status },
  list: { table: COMMON_OPTIONS, help: LIST_HELP, perform: list },
  watch: { table: WATCH_OPTIONS, help: WATCH_HELP, perform: watch },
  release: { table: RELEASE_OPTIONS, help: RELEASE_HELP, perform: release },
};
