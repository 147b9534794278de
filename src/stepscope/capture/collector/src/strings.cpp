#include "strings.h"

namespace stepscope {
namespace {

constexpr uint32_t kMostTexts = 1 << 20;     // programs that name every range again
constexpr size_t kLongestText = 32 * 1024;   // fits a chunk; kernel symbols reach some KiB

uint64_t mix(uint64_t a, uint64_t b) {
  unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_of(const char* text, size_t length) {
  uint64_t hash = 0x9E3779B97F4A7C15ull ^ length;
  const char* end = text + length;
  for (; end - text >= 8; text += 8) {
    uint64_t word;
    memcpy(&word, text, 8);
    hash = mix(hash ^ word, 0xD6E8FEB86659FD93ull);
  }
  uint64_t rest = 0;
  memcpy(&rest, text, static_cast<size_t>(end - text));
  return mix(hash ^ rest, 0xA0761D6478BD642Full);
}

}  // namespace

Strings::Table* Strings::make(uint64_t slots) {
  auto* table = static_cast<Table*>(calloc(1, sizeof(Table) + slots * sizeof(Entry*)));
  if (table) table->mask = slots - 1;
  return table;
}

Strings::Entry* Strings::find(Table* table, uint64_t hash, const char* text, size_t length) {
  for (uint64_t at = hash & table->mask;; at = (at + 1) & table->mask) {
    Entry* entry = __atomic_load_n(&table->slots[at], __ATOMIC_ACQUIRE);
    if (!entry) return nullptr;
    if (entry->hash == hash && entry->length == length && !memcmp(entry->text, text, length))
      return entry;
  }
}

uint32_t Strings::id(const char* text, size_t length) {
  if (!text) return 0;
  if (length > kLongestText) length = kLongestText;
  uint64_t hash = hash_of(text, length);
  Table* table = __atomic_load_n(&table_, __ATOMIC_ACQUIRE);
  if (table)
    if (Entry* entry = find(table, hash, text, length)) return entry->id;

  Guard guard(mutex_);
  table = table_;
  if (!table && !(table = make(4096))) return 0;
  if (Entry* entry = find(table, hash, text, length)) return entry->id;
  if (count_ >= kMostTexts) {
    dropped_++;
    return 0;
  }
  auto* entry = static_cast<Entry*>(malloc(sizeof(Entry) + length));
  if (!entry) return 0;
  entry->hash = hash;
  entry->id = ++count_;
  entry->length = static_cast<uint32_t>(length);
  memcpy(entry->text, text, length);
  record(entry->id, text, entry->length);
  if (count_ * 2 > table->mask) {
    Table* larger = make((table->mask + 1) * 4);
    if (larger) {
      for (uint64_t i = 0; i <= table->mask; i++)
        if (Entry* old = table->slots[i]) {
          uint64_t at = old->hash & larger->mask;
          while (larger->slots[at]) at = (at + 1) & larger->mask;
          larger->slots[at] = old;
        }
      table = larger;  // the old one is leaked: a reader may still be in it
    }
  }
  uint64_t at = hash & table->mask;
  while (table->slots[at]) at = (at + 1) & table->mask;
  __atomic_store_n(&table->slots[at], entry, __ATOMIC_RELEASE);
  __atomic_store_n(&table_, table, __ATOMIC_RELEASE);
  return entry->id;
}

uint32_t Strings::wide(const wchar_t* text) {
  if (!text) return 0;
  Text utf8;
  utf8.add("", 0);
  for (; *text && utf8.size() < kLongestText; text++) {
    uint32_t c = static_cast<uint32_t>(*text);
    char out[4];
    size_t n = 0;
    if (c < 0x80) {
      out[n++] = static_cast<char>(c);
    } else if (c < 0x800) {
      out[n++] = static_cast<char>(0xC0 | c >> 6);
    } else if (c < 0x10000) {
      out[n++] = static_cast<char>(0xE0 | c >> 12);
      out[n++] = static_cast<char>(0x80 | ((c >> 6) & 63));
    } else {
      out[n++] = static_cast<char>(0xF0 | ((c >> 18) & 7));
      out[n++] = static_cast<char>(0x80 | ((c >> 12) & 63));
      out[n++] = static_cast<char>(0x80 | ((c >> 6) & 63));
    }
    if (c >= 0x80) out[n++] = static_cast<char>(0x80 | (c & 63));
    utf8.add(out, n);
  }
  uint32_t found = id(utf8.data(), utf8.size());
  utf8.clear();
  return found;
}

void Strings::each(void (*take)(void*, uint32_t, const char*, uint32_t), void* to) {
  Table* table = __atomic_load_n(&table_, __ATOMIC_ACQUIRE);
  for (uint64_t i = 0; table && i <= table->mask; i++)
    if (Entry* entry = __atomic_load_n(&table->slots[i], __ATOMIC_ACQUIRE))
      take(to, entry->id, entry->text, entry->length);
}

void Strings::record(uint32_t id, const char* text, uint32_t length) {
  uint32_t bytes = (8 + length + 7) / 8 * 8;
  if (!chunk_ || chunk_->used + bytes > kChunkCapacity) {
    if (chunk_) chunks_->finish(chunk_);
    chunk_ = chunks_->acquire(kStrings, 0, 0);
    if (!chunk_) {
      dropped_++;
      return;
    }
  }
  uint8_t* place = payload(chunk_) + chunk_->used;
  memset(place + bytes - 8, 0, 8);
  memcpy(place, &id, 4);
  memcpy(place + 4, &length, 4);
  memcpy(place + 8, text, length);
  __atomic_store_n(&chunk_->used, chunk_->used + bytes, __ATOMIC_RELEASE);
}

void Strings::forget() {
  mutex_.reset();
  table_ = nullptr;
  chunk_ = nullptr;
  count_ = 0;
  dropped_ = 0;
}

}  // namespace stepscope
