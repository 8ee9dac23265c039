# Every request of libnbd, through nbdsh; `uri` is set, and `nbd` imported.
import errno


def connect(structured=True):
    handle = nbd.NBD()
    handle.set_request_structured_replies(structured)
    if structured:
        handle.add_meta_context("base:allocation")
    # Requests that libnbd would refuse by itself are to reach the server.
    handle.set_strict_mode(0)
    handle.connect_uri(uri)
    return handle


def fails(expected, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except nbd.Error as error:
        assert error.errnum == expected, error
        return
    raise AssertionError("no error")


def extents(handle, length, offset, flags=0):
    found = []

    def extent(context, start, entries, error):
        assert context == "base:allocation" and start == offset
        found.extend(zip(entries[::2], entries[1::2]))

    handle.block_status(length, offset, extent, flags)
    return found


parts = 0
first, second = connect(), connect()
simple = connect(structured=False)
size = first.get_size()
assert size == 16 << 20 and first.get_structured_replies_negotiated()
assert not simple.get_structured_replies_negotiated()
assert first.can_multi_conn() and first.get_block_size(nbd.SIZE_MINIMUM) == 4096

# What one connection was acknowledged the others see, simple replies or structured.
first.zero(size, 0)
first.pwrite(b"hello" * 1000, 8192)
for handle in (first, second, simple):
    assert handle.pread(5000, 8192) == b"hello" * 1000
assert first.pread(5000, 8192, nbd.CMD_FLAG_DF) == b"hello" * 1000
parts += 1

# Any length at any place.
simple.pwrite(b"x", 4095)
second.pwrite(b"y" * 4098, 4096, nbd.CMD_FLAG_FUA)
assert first.pread(4104, 4093) == b"\0\0x" + b"y" * 4098 + b"llo"
parts += 1

# A flush on one for writes on others.
simple.pwrite(b"z" * 4096, 1 << 20)
second.flush()
simple.flush()
parts += 1

first.trim(4096, 1 << 20, nbd.CMD_FLAG_FUA)
assert second.pread(4096, 1 << 20) == bytes(4096)
first.zero(100, 8192 + 50)
assert second.pread(200, 8192 + 50)[:101] == bytes(100) + b"h"
first.cache(1 << 20, 0)
parts += 1

# Holes, and zeroes that take space.
first.zero(size, 0)
assert extents(first, size, 0) == [(size, 3)]
first.zero(8192, 4096, nbd.CMD_FLAG_NO_HOLE)
assert extents(second, 1 << 20, 0) == [(4096, 3), (8192, 0), ((1 << 20) - 12288, 3)]
assert extents(second, 1 << 20, 0, nbd.CMD_FLAG_REQ_ONE) == [(4096, 3)]
first.zero(4096, 4096, nbd.CMD_FLAG_FAST_ZERO)
both = nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE
fails(errno.ENOTSUP, first.zero, 4096, 4096, both)
parts += 1

# Beyond the end; the connection goes on.
for handle in (first, simple):
    fails(errno.EINVAL, handle.pread, 1, size)
    fails(errno.ENOSPC, handle.pwrite, b"12", size - 1)
    fails(errno.ENOSPC, handle.zero, 2, size - 1)
    fails(errno.EINVAL, handle.trim, 2, size - 1)
    assert handle.pread(1, size - 1) == b"\0"
parts += 1

# Many requests under way, of which each has its own reply.
count, length = 500, 8192
buffers = [nbd.Buffer.from_bytearray(bytearray([n % 256]) * length) for n in range(count)]
for handle in (first, simple):
    cookies = [handle.aio_pwrite(buffer, n * length) for n, buffer in enumerate(buffers)]
    cookies.append(handle.aio_flush())
    while handle.aio_in_flight() > 0:
        handle.poll(-1)
    assert all(handle.aio_command_completed(cookie) for cookie in cookies)
    into = [nbd.Buffer(length) for _ in range(count)]
    cookies = [handle.aio_pread(buffer, n * length) for n, buffer in enumerate(into)]
    while handle.aio_in_flight() > 0:
        handle.poll(-1)
    assert all(handle.aio_command_completed(cookie) for cookie in cookies)
    assert all(into[n].to_bytearray() == bytearray([n % 256]) * length for n in range(count))
parts += 1

# As long as a request may be, or the disk is.
whole = bytes(range(256)) * (size // 256)
first.pwrite(whole, 0)
assert simple.pread(size, 0) == whole
parts += 1

for handle in (first, second, simple):
    handle.shutdown()
parts += 1
print("every request: %d parts" % parts)
