#include "store/url.h"

#include <gtest/gtest.h>

#include <map>

namespace flotilla {
namespace {

std::string proxy(const char* url, std::map<std::string, std::string> variables) {
  const auto found = proxy_for(parse_url(url).value(), [&](const char* name) -> std::optional<std::string> {
    const auto variable = variables.find(name);
    return variable == variables.end() ? std::nullopt : std::optional(variable->second);
  });
  if (!found.ok()) return std::string(status_code_name(found.status().code()));
  return *found ? (*found)->text() : "none";
}

TEST(UrlTest, HasItsParts) {
  const Url url = parse_url("https://Hub.Example.org:9000/a%20b/").value();
  EXPECT_TRUE(url.tls);
  EXPECT_EQ(url.host, "hub.example.org");
  EXPECT_EQ(url.port, 9000);
  EXPECT_EQ(url.path, "/a b");
  EXPECT_EQ(url.authority(), "hub.example.org:9000");
  EXPECT_EQ(url.text(), "https://hub.example.org:9000/a%20b");
  EXPECT_EQ(parse_url("http://h")->authority(), "h");
  EXPECT_EQ(parse_url("http://h")->port, 80);
  EXPECT_EQ(parse_url("https://h:80")->authority(), "h:80");
  const Url user = parse_url("http://ada:p%40ss@h:3128").value();
  EXPECT_EQ(user.user, "ada");
  EXPECT_EQ(user.password, "p@ss");
  EXPECT_EQ(user.text(), "http://h:3128");
}

TEST(UrlTest, HoldsIPv6AddressesInBrackets) {
  const Url url = parse_url("http://[::1]:9000/x").value();
  EXPECT_EQ(url.host, "::1");
  EXPECT_EQ(url.authority(), "[::1]:9000");
  EXPECT_EQ(parse_url("https://[2001:DB8::1]")->authority(), "[2001:db8::1]");
}

TEST(UrlTest, RefusesWhatIsNoUrl) {
  for (const char* text :
       {"", "h", "ftp://h", "http:/h", "http://", "http://:80", "http://h:", "http://h:0", "http://h:65536",
        "http://h:8o", "http://h x", "http://[::1", "http://[::1]9000", "http://[h]", "http://h/?a=b", "http://h#a",
        "http://h/%2", "http://a%zz@h", "http://h\r\n"}) {
    EXPECT_EQ(parse_url(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(parse_url("http://ada:secret@h:x").status().message().find("secret"), std::string::npos);
}

TEST(ProxyTest, IsTheOneOfTheScheme) {
  const std::map<std::string, std::string> both = {{"http_proxy", "http://p:1"}, {"https_proxy", "q:2"}};
  EXPECT_EQ(proxy("http://h", both), "http://p:1");
  EXPECT_EQ(proxy("https://h", both), "http://q:2");
  EXPECT_EQ(proxy("http://h", {{"HTTP_PROXY", "http://p:1"}}), "none");
  EXPECT_EQ(proxy("https://h", {{"HTTPS_PROXY", "http://p:1"}}), "http://p:1");
  EXPECT_EQ(proxy("https://h", {{"ALL_PROXY", "http://p:1"}}), "http://p:1");
  EXPECT_EQ(proxy("https://h", {}), "none");
}

TEST(ProxyTest, IsNotUsedForHostsThatNoProxyLists) {
  const auto direct = [](const char* url, const char* hosts) {
    return proxy(url, {{"http_proxy", "http://p:1"}, {"no_proxy", hosts}}) == "none";
  };
  EXPECT_TRUE(direct("http://a.example.org", "localhost,example.org"));
  EXPECT_TRUE(direct("http://a.example.org", ".example.org"));
  EXPECT_TRUE(direct("http://example.org", "other, EXAMPLE.org"));
  EXPECT_TRUE(direct("http://[::1]:9", "::1"));
  EXPECT_TRUE(direct("http://[::1]:9", "[::1]"));
  EXPECT_TRUE(direct("http://anything", "*"));
  EXPECT_FALSE(direct("http://notexample.org", "example.org"));
  EXPECT_FALSE(direct("http://example.org", "a.example.org"));
  EXPECT_FALSE(direct("http://example.org", ",,"));
}

TEST(ProxyTest, RefusesProxiesThatItCannotSpeakTo) {
  for (const char* text : {"socks5://p:1", "https://p:1", "http://p:x"}) {
    EXPECT_EQ(proxy("http://h", {{"http_proxy", text}}), "invalid_argument") << text;
  }
}

}  // namespace
}  // namespace flotilla
