/**
 * SHA-1 (FIPS 180-4, section 6.1.2), which names scripts and channels in Redis; nothing secret rests on
 * it. Written out because `crypto.subtle` is asynchronous and missing on pages without TLS.
 *
 * @module
 */

/**
 * Hashes a text.
 *
 * @param text ASCII characters
 * @returns 40 hexadecimal digits
 */
export function sha1Hex(text: string): string {
  // Padding: a one bit, zeros, and the length in bits as 64 bits, up to a multiple of 64 bytes.
  const words = new Int32Array(((text.length + 8) >> 6) * 16 + 16);
  for (let i = 0; i < text.length; i++) words[i >> 2]! |= text.charCodeAt(i) << (24 - 8 * (i & 3));
  words[text.length >> 2]! |= 0x80 << (24 - 8 * (text.length & 3));
  words[words.length - 1] = text.length * 8;

  let h0 = 0x67452301,
    h1 = 0xefcdab89 | 0,
    h2 = 0x98badcfe | 0,
    h3 = 0x10325476,
    h4 = 0xc3d2e1f0 | 0;
  const w = new Int32Array(80);
  for (let block = 0; block < words.length; block += 16) {
    for (let t = 0; t < 16; t++) w[t] = words[block + t]!;
    for (let t = 16; t < 80; t++) w[t] = rotl(w[t - 3]! ^ w[t - 8]! ^ w[t - 14]! ^ w[t - 16]!, 1);
    let a = h0, b = h1, c = h2, d = h3, e = h4;
    for (let t = 0; t < 80; t++) {
      const f = t < 20
        ? ((b & c) | (~b & d)) + 0x5a827999
        : t < 40
        ? (b ^ c ^ d) + 0x6ed9eba1
        : t < 60
        ? ((b & c) | (b & d) | (c & d)) - 0x70e44324
        : (b ^ c ^ d) - 0x359d3e2a;
      const next = (rotl(a, 5) + f + e + w[t]!) | 0;
      e = d;
      d = c;
      c = rotl(b, 30);
      b = a;
      a = next;
    }
    h0 = (h0 + a) | 0;
    h1 = (h1 + b) | 0;
    h2 = (h2 + c) | 0;
    h3 = (h3 + d) | 0;
    h4 = (h4 + e) | 0;
  }
  return [h0, h1, h2, h3, h4].map((h) => (h >>> 0).toString(16).padStart(8, "0")).join("");
}

function rotl(x: number, bits: number): number {
  return (x << bits) | (x >>> (32 - bits));
}
