// The replay of programs: what simulation/reference.py says, over columns.
//
// One call replays one job: the hosts of all its ranks work through their items, and meet at
// collectives. Integers wrap (-fwrapv) and nothing is thrown; all references were checked by the
// caller. It needs the C library only, and holds no state: any number of threads may be in it.
#include <cstdint>
#include <cstdlib>

namespace {

using i64 = int64_t;

constexpr i64 kLaunch = 0, kMark = 2;  // of kinds; the other one waits
// beside the kind, in a byte an item
constexpr uint8_t kHosted = 4, kBlocks = 8, kMeets = 16, kPosts = 32;

// Lists by item: those of items[n] are on[begin[n]..begin[n + 1]); items are in order.
struct Links {
  i64 count;
  const i64* items;
  const i64* begin;
  const i64* on;
  const i64* between;  // null where there is none
};

}  // namespace

extern "C" {

// One rank; the columns are those of simulation.program.Program.
struct StepscopeRank {
  i64 items;
  i64 streams;
  i64 causes;
  const i64* kind;
  const i64* work;  // by item and cause, so far apart:
  i64 work_of_item;
  i64 work_of_cause;
  const i64* call;
  const i64* stream;
  const i64* latency;
  const i64* kernel_gap;
  const i64* delay;
  const i64* duration;
  const i64* returns;
  const i64* behind;
  const i64* meeting;  // number of the collective; -1 for none
  const uint8_t* hosted;
  const uint8_t* blocks;
  const uint8_t* posts;  // null for none
  i64 begin;
  i64 busy_streams;
  const i64* busy;
  const i64* before_start;  // by item of the run before; null where it is not known
  const i64* before_end;
  Links depends;
  Links waits;
  i64* host;   // items x passes; null where nobody asks
  i64* start;  // items x passes, zeros; null where nobody asks
  i64* end;    // likewise
  i64* bounds;
};

}  // extern "C"

namespace {

template <typename T>
T* zeros(i64 count) {
  return static_cast<T*>(calloc(static_cast<size_t>(count > 0 ? count : 1), sizeof(T)));
}

inline i64 larger(i64 a, i64 b) { return a > b ? a : b; }

struct Member {
  const StepscopeRank* rank;
  i64* work;
  uint8_t* what;
  i64* free_at;  // by stream
  i64* start;
  i64* end;
  i64 item, pass, host, latest, marks;
  i64 origin;  // when the first item came
  i64 depend, wait;  // the next entries of the links
  // where it stands: number of the meeting, when it came, how long the transfer takes
  i64 meeting, arrival, transfer;
  i64 next;  // another that stands there; -1 for none
  bool posted;  // its operation does not wait there
  bool done;
};

bool prepare(Member& m, const StepscopeRank& r, i64 passes) {
  m.rank = &r;
  m.work = zeros<i64>(r.items);
  m.what = zeros<uint8_t>(r.items);
  m.free_at = zeros<i64>(r.streams);
  m.start = r.start ? r.start : zeros<i64>(r.items * passes);
  m.end = r.end ? r.end : zeros<i64>(r.items * passes);
  m.meeting = m.next = -1;
  if (!m.work || !m.what || !m.free_at || !m.start || !m.end) return false;
  if (r.work_of_cause == 1) {
    for (i64 i = 0; i < r.items; ++i)
      for (i64 c = 0; c < r.causes; ++c) m.work[i] += r.work[i * r.work_of_item + c];
  } else {
    for (i64 c = 0; c < r.causes; ++c)
      for (i64 i = 0; i < r.items; ++i)
        m.work[i] += r.work[i * r.work_of_item + c * r.work_of_cause];
  }
  for (i64 i = 0; i < r.items; ++i) {
    uint8_t what = static_cast<uint8_t>(r.kind[i]);
    if (r.hosted[i]) what |= kHosted;
    if (r.blocks[i]) what |= kBlocks;
    if (r.meeting[i] >= 0) what |= kMeets;
    if (r.meeting[i] >= 0 && r.posts && r.posts[i]) what |= kPosts;
    m.what[i] = what;
  }
  m.host = r.begin;
  m.origin = r.begin + (r.items ? m.work[0] : 0);
  for (i64 s = 0; s < r.busy_streams && s < r.streams; ++s)
    if (r.busy[s] > 0) m.free_at[s] = m.origin + r.busy[s];
  return true;
}

void release(Member& m) {
  if (!m.rank) return;
  free(m.work);
  free(m.what);
  free(m.free_at);
  if (!m.rank->start) free(m.start);
  if (!m.rank->end) free(m.end);
}

// Start or end of an item, by its place in all passes; before them those of the run before.
inline i64 time_of(const i64* times, const i64* before, const Member& m, i64 place) {
  if (place >= 0) return times[place];
  place += m.rank->items;
  return before && place >= 0 ? m.origin + before[place] : 0;
}

i64 latest_end(Member& m) {
  for (i64 s = 0; s < m.rank->streams; ++s) m.latest = larger(m.latest, m.free_at[s]);
  return m.latest;
}

// Up to the next collective, where it stops (true), or to the end (false).
// `met`: the collective that it stood at has ended then.
bool run(Member& m, i64 passes, bool met, i64 met_end) {
  const StepscopeRank& r = *m.rank;
  const i64 n = r.items;
  const i64 *work = m.work, *call = r.call, *stream = r.stream, *latency = r.latency;
  const i64 *turn = r.kernel_gap, *delay = r.delay, *duration = r.duration, *behind = r.behind;
  const uint8_t* what = m.what;
  i64 *start = m.start, *end = m.end, *free_at = m.free_at, *host = r.host;
  i64 h = m.host;
  i64 i = m.item;
  for (; m.pass < passes; ++m.pass, i = 0, m.depend = 0, m.wait = 0) {
    const i64 base = m.pass * n;
    i64 next_depend = m.depend < r.depends.count ? r.depends.items[m.depend] : n;
    for (; i < n; ++i) {
      const i64 j = base + i;
      const uint8_t is = what[i];
      const i64 kind = is & 3;
      i64 at = 0;
      if (kind == kLaunch) {
        const i64 s = stream[i];
        if (!met) {
          h += work[i];
          if (is & kHosted) {
            h = larger(h, time_of(start, r.before_start, m, base + behind[i]));
            at = h + latency[i];
          }
          if (s >= 0) at = larger(at, free_at[s] + turn[i]);
          if (i == next_depend) {
            const i64 to = r.depends.begin[m.depend + 1];
            for (i64 k = r.depends.begin[m.depend]; k < to; ++k) {
              const i64 ended = time_of(end, r.before_end, m, base + r.depends.on[k]);
              at = larger(at, ended + r.depends.between[k]);
            }
            ++m.depend;
            next_depend = m.depend < r.depends.count ? r.depends.items[m.depend] : n;
          }
          at += delay[i];
          start[j] = at;
          if (is & kMeets) {
            m.meeting = r.meeting[i];
            m.arrival = at;
            m.transfer = duration[i];
            m.posted = is & kPosts;
            m.host = h;
            m.item = i;
            return true;
          }
          at += duration[i];
        } else {
          at = met_end;
          met = false;
        }
        end[j] = at;
        if (s >= 0) free_at[s] = at;
        h += call[i];
        if (is & kBlocks) h = larger(h, at + r.returns[i]);
      } else if (kind == kMark) {
        h += work[i];
        r.bounds[m.marks++] = larger(h, latest_end(m));
      } else {
        h += work[i] + call[i];
        while (m.wait < r.waits.count && r.waits.items[m.wait] < i) ++m.wait;
        if (m.wait < r.waits.count && r.waits.items[m.wait] == i) {
          i64 done = INT64_MIN;
          for (i64 k = r.waits.begin[m.wait]; k < r.waits.begin[m.wait + 1]; ++k) {
            done = larger(done, time_of(end, r.before_end, m, base + r.waits.on[k]));
          }
          h = larger(h, done + r.returns[i]);
        }
      }
      if (host) host[j] = h;
    }
  }
  if (n) h += work[0];
  r.bounds[m.marks] = larger(h, latest_end(m));
  m.done = true;
  return false;
}

}  // namespace

extern "C" {

// Replays the ranks of a job together; 0, or 1 where there is not enough memory.
// `members`: how many items of all ranks are each collective's; its number is at least 0 and below
// `meetings`.
__attribute__((visibility("default"))) int stepscope_replay(
    const StepscopeRank* ranks, i64 count, i64 passes, const i64* members, i64 meetings) {
  Member* member = zeros<Member>(count);
  i64* standing = zeros<i64>(meetings * passes);   // how many stand at each
  i64* first = zeros<i64>(meetings * passes);      // one of those that wait there, plus one
  i64* latest = zeros<i64>(meetings * passes);     // when the last one came
  i64* ready = zeros<i64>(count);
  i64 waiting = count;  // ranks in `ready`, from its begin
  int failed = !member || !standing || !first || !latest || !ready;
  for (i64 n = 0; !failed && n < count; ++n) {
    failed = !prepare(member[n], ranks[n], passes);
    ready[n] = n;
  }
  while (!failed) {
    i64 go = -1;  // the collective that goes
    if (waiting) {
      const i64 n = ready[--waiting];
      Member& m = member[n];
      const bool met = m.meeting >= 0;
      const i64 end = m.arrival;
      m.meeting = -1;
      if (!run(m, passes, met, end)) continue;
      const i64 at = m.pass * meetings + m.meeting;
      latest[at] = standing[at]++ ? larger(latest[at], m.arrival) : m.arrival;
      if (m.posted) {
        m.arrival += m.transfer;
        ready[waiting++] = n;
      } else {
        m.next = first[at] - 1;
        first[at] = n + 1;
      }
      if (standing[at] < members[m.meeting]) continue;
      go = at;
    } else {
      // ranks stand at different collectives: their order differs between the ranks, or some of
      // them lie outside the run; the earliest goes on with those that are there
      i64 arrival = 0;
      for (i64 n = 0; n < count; ++n) {
        if (member[n].done) continue;
        const i64 at = member[n].pass * meetings + member[n].meeting;
        if (first[at] != n + 1) continue;  // each once
        const i64 last = latest[at];
        const i64 pass = at / meetings;
        if (go < 0 || pass < go / meetings ||
            (pass == go / meetings && (last < arrival || (last == arrival && at < go)))) {
          go = at;
          arrival = last;
        }
      }
      if (go < 0) break;  // all are done
    }
    i64 transfer = INT64_MIN;
    for (i64 k = first[go] - 1; k >= 0; k = member[k].next)
      transfer = larger(transfer, member[k].transfer);
    for (i64 k = first[go] - 1; k >= 0; k = member[k].next) {
      member[k].arrival = latest[go] + transfer;
      ready[waiting++] = k;
    }
    first[go] = standing[go] = 0;
  }
  if (member)
    for (i64 n = 0; n < count; ++n) release(member[n]);
  free(member);
  free(standing);
  free(first);
  free(latest);
  free(ready);
  return failed;
}

}  // extern "C"
