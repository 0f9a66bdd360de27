#include "compare.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/unknown_field_set.h>

#include <cmath>
#include <set>

namespace meshnet {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using nlohmann::json;

constexpr const char* kUnknown = "@unknown";

json enum_value(const FieldDescriptor* field, int number) {
  const EnumValueDescriptor* value = field->enum_type()->FindValueByNumber(number);
  return value != nullptr ? json(value->name()) : json(number);
}

// Infinities and NaN have no form in JSON.
json double_value(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::isnan(value)) return "nan";
  return value;
}

json text_value(const FieldDescriptor* field, const std::string& value) {
  return field->type() == FieldDescriptor::TYPE_BYTES ? json(hex(value)) : json(value);
}

// A singular field's value; it may be unset and then has its default.
json value_of(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return double_value(reflection.GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return enum_value(field, reflection.GetEnumValue(message, field));
    case FieldDescriptor::CPPTYPE_STRING:
      return text_value(field, reflection.GetString(message, field));
    default:
      throw std::logic_error(field->full_name() + " has a type that is not compared");
  }
}

json element_of(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return enum_value(field, reflection.GetRepeatedEnumValue(message, field, index));
    default:
      throw std::logic_error(field->full_name() + " has a type that is not compared");
  }
}

json unknown_of(const Message& message) {
  const UnknownFieldSet& set = message.GetReflection()->GetUnknownFields(message);
  json found = json::array();
  for (int i = 0; i < set.field_count(); ++i) {
    const UnknownField& field = set.field(i);
    json entry = {{"number", field.number()}};
    switch (field.type()) {
      case UnknownField::TYPE_VARINT:
        entry["varint"] = field.varint();
        break;
      case UnknownField::TYPE_FIXED32:
        entry["fixed32"] = field.fixed32();
        break;
      case UnknownField::TYPE_FIXED64:
        entry["fixed64"] = field.fixed64();
        break;
      case UnknownField::TYPE_LENGTH_DELIMITED:
        entry["bytes"] = hex(field.length_delimited());
        break;
      case UnknownField::TYPE_GROUP:
        throw std::logic_error("groups are not compared");
    }
    found.push_back(entry);
  }
  return found;
}

class Comparison {
 public:
  std::vector<std::string> lines;

  void message(const Message& message, const json& fields, const std::string& path) {
    std::set<std::string> known = {kUnknown};
    const auto* descriptor = message.GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const FieldDescriptor* field = descriptor->field(i);
      known.insert(field->name());
      this->field(message, field, fields, path + "." + field->name());
    }
    for (const auto& [name, value] : fields.items()) {
      if (known.count(name) == 0) lines.push_back(path + "." + name + ": no such field");
    }
    equal(unknown_of(message), fields.value(kUnknown, json::array()), path + "." + kUnknown);
  }

 private:
  void field(const Message& message, const FieldDescriptor* field, const json& fields,
             const std::string& path) {
    const bool named = fields.contains(field->name());
    if (field->is_repeated()) {
      repeated(message, field, named ? fields[field->name()] : json::array(), path);
      return;
    }
    const Reflection& reflection = *message.GetReflection();
    if (field->has_presence() && reflection.HasField(message, field) != named) {
      lines.push_back(path + (named ? ": absent" : ": present, but the case doesn't name it"));
    } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      const json expected = named ? fields[field->name()] : default_of(field);
      equal(value_of(message, field), expected, path);
    } else if (named) {
      this->message(reflection.GetMessage(message, field), fields[field->name()], path);
    }
  }

  void repeated(const Message& message, const FieldDescriptor* field, const json& expected,
                const std::string& path) {
    const Reflection& reflection = *message.GetReflection();
    const int size = reflection.FieldSize(message, field);
    equal(size, expected.size(), path + " size");
    for (int i = 0; i < size && i < static_cast<int>(expected.size()); ++i) {
      const std::string place = path + "[" + std::to_string(i) + "]";
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        this->message(reflection.GetRepeatedMessage(message, field, i), expected[i], place);
      } else {
        equal(element_of(message, field, i), expected[i], place);
      }
    }
  }

  static json default_of(const FieldDescriptor* field) {
    const Message* empty = google::protobuf::MessageFactory::generated_factory()->GetPrototype(
        field->containing_type());
    return value_of(*empty, field);
  }

  void equal(const json& found, const json& expected, const std::string& path) {
    // A whole number and a fraction compare as fractions, which hold fewer digits.
    if (found != expected || found.is_number_float() != expected.is_number_float()) {
      lines.push_back(path + ": " + found.dump() + ", not " + expected.dump());
    }
  }
};

}  // namespace

std::vector<std::string> differences(const Message& message, const json& fields,
                                     const std::string& path) {
  Comparison comparison;
  comparison.message(message, fields, path);
  return comparison.lines;
}

std::string hex(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

std::string serialise(const Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  if (!message.SerializeToCodedStream(&coded)) throw std::logic_error("can't be serialised");
  coded.Trim();
  return bytes;
}

}  // namespace meshnet
