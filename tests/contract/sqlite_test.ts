import { testLeaseStorage } from "../../src/testing/mod.ts";
import { sqliteSubject } from "../support/sqlite_subject.ts";

for (const journal of ["wal", "delete"] as const) {
  await testLeaseStorage({
    name: `sqlite (journal_mode=${journal})`,
    test: Deno.test,
    setup: () => sqliteSubject(journal),
  });
}
