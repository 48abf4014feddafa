#include <algorithm>

#include <fmt/format.h>

#include "env/dictionary_entry.h"

namespace flotilla {
namespace {

constexpr std::string_view kMagic = "FLOTDICT";
constexpr std::uint32_t kFormat = 1;
constexpr std::uint64_t kMaxText = 4096;
constexpr std::uint64_t kMaxAnswers = 256;

void put_text(ByteWriter& writer, std::string_view text) {
  writer.put_varint(text.size());
  writer.put_bytes(as_bytes(text));
}

Result<std::string> get_text(ByteReader& reader) {
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t size, reader.get_varint());
  if (size == 0 || size > kMaxText)
    return data_loss(fmt::format("a text of {} bytes; 1 to {} are allowed", size, kMaxText));
  FLOTILLA_ASSIGN_OR_RETURN(const ByteSpan bytes, reader.get_bytes(size));
  // A line break in a title would forge a second document in an observation.
  if (!std::all_of(bytes.begin(), bytes.end(), [](std::uint8_t b) { return b >= 0x20 && b < 0x7F; })) {
    return data_loss("a text with bytes other than printable ASCII");
  }
  return std::string(as_text(bytes));
}

Result<DictionaryEntry> get_entry(ByteReader& reader) {
  DictionaryEntry entry;
  FLOTILLA_ASSIGN_OR_RETURN(const std::uint64_t answers, reader.get_varint());
  if (answers == 0 || answers > kMaxAnswers) {
    return data_loss(fmt::format("{} answers; 1 to {} are allowed", answers, kMaxAnswers));
  }
  for (std::uint64_t i = 0; i < answers; ++i) {
    FLOTILLA_ASSIGN_OR_RETURN(std::string answer, get_text(reader));
    entry.answers.push_back(std::move(answer));
  }
  FLOTILLA_ASSIGN_OR_RETURN(entry.definition, get_text(reader));
  FLOTILLA_ASSIGN_OR_RETURN(entry.kind, get_text(reader));
  FLOTILLA_ASSIGN_OR_RETURN(entry.description, get_text(reader));
  return entry;
}

}  // namespace

Bytes write_dictionary(const Dictionary& dictionary) {
  ByteWriter writer;
  for (const char c : kMagic) writer.put(c);
  writer.put(kFormat);
  writer.put(static_cast<std::uint32_t>(dictionary.entries.size()));
  writer.put(dictionary.held_out);
  for (const DictionaryEntry& entry : dictionary.entries) {
    writer.put_varint(entry.answers.size());
    for (const std::string& answer : entry.answers) put_text(writer, answer);
    put_text(writer, entry.definition);
    put_text(writer, entry.kind);
    put_text(writer, entry.description);
  }
  return std::move(writer).take();
}

Result<Dictionary> read_dictionary(ByteSpan bytes) {
  ByteReader reader(bytes);
  FLOTILLA_ASSIGN_OR_RETURN(const ByteSpan magic, reader.get_bytes(kMagic.size()));
  if (as_text(magic) != kMagic) return data_loss("not a dictionary artifact: it does not begin with FLOTDICT");
  FLOTILLA_ASSIGN_OR_RETURN(const auto format, reader.get<std::uint32_t>());
  if (format != kFormat) {
    return failed_precondition(
        fmt::format("dictionary artifact of format {}; this program reads format {}: upgrade it", format, kFormat));
  }
  FLOTILLA_ASSIGN_OR_RETURN(const auto count, reader.get<std::uint32_t>());
  Dictionary dictionary;
  FLOTILLA_ASSIGN_OR_RETURN(dictionary.held_out, reader.get<std::uint32_t>());
  if (dictionary.held_out == 0 || dictionary.held_out >= count) {
    return data_loss(
        fmt::format("{} of {} entries held out; 1 to all but one are possible", dictionary.held_out, count));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    FLOTILLA_ASSIGN_OR_RETURN(DictionaryEntry entry, get_entry(reader).with_context(fmt::format("entry {}", i)));
    dictionary.entries.push_back(std::move(entry));
  }
  if (reader.remaining() > 0) return data_loss(fmt::format("{} bytes after the last entry", reader.remaining()));
  return dictionary;
}

}  // namespace flotilla
