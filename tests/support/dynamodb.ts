/**
 * Clients of DynamoDB Local for tests, and what they send.
 *
 * @module
 */
import { DynamoDB, type DynamoDBClientConfig } from "@aws-sdk/client-dynamodb";
import type { TcpProxy } from "./tcp_proxy.ts";

/** The table of the tests. */
export const TABLE = "leases";

/** A client with connections of its own; disposing it closes them. */
export function connect(
  url: string,
  config: DynamoDBClientConfig = {},
): DynamoDB & Disposable {
  const credentials = { accessKeyId: "test", secretAccessKey: "test" };
  const client = new DynamoDB({ endpoint: url, region: "us-east-1", credentials, ...config });
  return Object.assign(client, { [Symbol.dispose]: () => client.destroy() });
}

/** The operation that a request asks for; the SDK sends one request in one chunk. */
export function operationOf(request: Uint8Array): string | undefined {
  const head = new TextDecoder("latin1").decode(request.subarray(0, 400));
  return /^x-amz-target: DynamoDB_\d+\.(\w+)\r$/im.exec(head)?.[1];
}

/** Notes the operations that go through a proxy from now on, resends included. */
export function record(proxy: TcpProxy): string[] {
  const operations: string[] = [];
  proxy.dropReplyIf((request) => {
    const operation = operationOf(request);
    if (operation !== undefined) operations.push(operation);
    return false;
  }, Infinity);
  return operations;
}
