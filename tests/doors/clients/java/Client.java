import com.google.gson.Gson;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.SafeEncoder;

/** Sends each line of standard input, a JSON array of words, and prints each answer as JSON. */
public final class Client {
    public static void main(String[] arguments) throws Exception {
        String[] address = arguments[0].split(":");
        Gson json = new Gson();
        try (Jedis client = new Jedis(address[0], Integer.parseInt(address[1]));
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println(json.toJson(answer(client, json.fromJson(line, String[].class))));
            }
        }
    }

    private static Object answer(Jedis client, String[] words) {
        try {
            String[] rest = Arrays.copyOfRange(words, 1, words.length);
            return text(client.sendCommand(() -> SafeEncoder.encode(words[0]), rest));
        } catch (JedisException error) {
            return Map.of("error", error.getMessage());
        }
    }

    private static Object text(Object answer) {
        if (answer instanceof byte[] bytes) {
            return SafeEncoder.encode(bytes);
        }
        if (answer instanceof List<?> items) {
            return items.stream().map(Client::text).collect(Collectors.toList());
        }
        return answer;
    }
}
