"""Microseconds a record of MSET, MULTI..EXEC and pipelined SET, by length; wall time and the server's processor time."""
import os, socket, statistics, subprocess, sys, time, json, shutil
BIN = sys.argv[1]; ROUNDS = int(sys.argv[2]); OUT = sys.argv[3]
LENGTHS = [10, 100, 1000, 10000, 100000, 300000]
TOTAL = 300000
def bulk(words):
    out = [b'*%d\r\n' % len(words)]
    for w in words: out.append(b'$%d\r\n%s\r\n' % (len(w), w))
    return b''.join(out)
def key(i): return b'key:%012d' % (i * 2654435761 % 1000000007 % 1000000)
VALUE = b'v' * 100
def requests(kind, n):
    parts = []; replies = 0
    for start in range(0, TOTAL, n):
        keys = [key(start + i) for i in range(n)]
        if kind == 'set':
            parts.append(b''.join(bulk([b'SET', k, VALUE]) for k in keys)); replies += n
        elif kind == 'mset':
            words = [b'MSET']
            for k in keys: words += [k, VALUE]
            parts.append(bulk(words)); replies += 1
        else:
            parts.append(bulk([b'MULTI']) + b''.join(bulk([b'SET', k, VALUE]) for k in keys) + bulk([b'EXEC'])); replies += 1
    return parts
def cpu(pid):
    f = open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf('SC_CLK_TCK')
def drive(port, pid, kind, n):
    s = socket.create_connection(('127.0.0.1', port)); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    parts = requests(kind, n)
    group = max(1, 1000 // n) if kind != 'set' else 1
    if kind == 'set': # pipelined by 64 or by n
        parts = [p for p in parts]
    end = bulk([b'ECHO', b'the-end-of-it'])
    data = b''.join(parts)
    c0, t0 = cpu(pid), time.perf_counter()
    import threading
    def send():
        s.sendall(data); s.sendall(end)
    th = threading.Thread(target=send); th.start()
    tail = b''
    while b'the-end-of-it' not in tail:
        got = s.recv(1 << 20)
        if not got: raise SystemExit('closed')
        if b'-ERR' in got or b'-OOM' in got: raise SystemExit(got[:200])
        tail = (tail + got)[-40:]
    th.join(); t1, c1 = time.perf_counter(), cpu(pid)
    s.close()
    return (t1 - t0) / TOTAL * 1e6, (c1 - c0) / TOTAL * 1e6
def start(which, d):
    port = 7100 if which == 'redis' else 7200
    if which == 'redis':
        p = subprocess.Popen(['redis-server', '--port', str(port), '--save', '', '--appendonly', 'no', '--dir', d], stdout=subprocess.DEVNULL)
    else:
        p = subprocess.Popen([BIN, 'serve', '--media', 'emulated:none', '--engine', which.split()[0], '--pool', d + '/pool', '--size', '2GiB', '--port', str(port)] + (['--matrix', '2x2'] if '2x2' in which else []), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(100):
        try: socket.create_connection(('127.0.0.1', port)).close(); return p, port
        except OSError: time.sleep(0.1)
    raise SystemExit('no server ' + which)
res = {}
for r in range(ROUNDS):
    for which in ['redis', 'scmkv', 'bptree', 'scmkv 2x2', 'bptree 2x2']:
        d = '/mnt/huge/batches'; shutil.rmtree(d, ignore_errors=True); os.makedirs(d)
        p, port = start(which, d)
        drive(port, p.pid, 'set', 64)
        for kind in ['set', 'mset', 'exec']:
            for n in ([64] if kind == 'set' else LENGTHS):
                w, c = drive(port, p.pid, kind, n)
                res.setdefault((which, kind, n), []).append((w, c))
        p.terminate(); p.wait()
with open(OUT, 'w') as f:
    for (which, kind, n), v in res.items():
        line = dict(server=which, command=kind, length=n, wall_us=round(statistics.median(x[0] for x in v), 3), wall_least=round(min(x[0] for x in v), 3), wall_most=round(max(x[0] for x in v), 3), cpu_us=round(statistics.median(x[1] for x in v), 3))
        f.write(json.dumps(line) + '\n'); print(line)
