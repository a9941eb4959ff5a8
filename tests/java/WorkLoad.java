import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.time.temporal.ChronoUnit;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;
import javax.xml.parsers.DocumentBuilderFactory;
import javax.xml.parsers.SAXParserFactory;
import javax.xml.stream.XMLInputFactory;
import javax.xml.stream.XMLStreamReader;
import javax.xml.transform.TransformerFactory;
import javax.xml.transform.stream.StreamResult;
import javax.xml.transform.stream.StreamSource;
import javax.xml.xpath.XPathFactory;
import org.w3c.dom.Document;
import org.xml.sax.Attributes;
import org.xml.sax.InputSource;
import org.xml.sax.helpers.DefaultHandler;

/**
 * Uses a large part of the JDK: XML parsers, XSLT (which compiles stylesheets to bytecode), streams,
 * times, compression, regular expressions and threads. Even the smallest runtimes contain all modules
 * that it needs.
 *
 * "go ROUNDS" repeats all of it ROUNDS times with varying input and is answered by "done SUM".
 */
public class WorkLoad {
    private static final String SHEET = "<xsl:stylesheet version='1.0'"
            + " xmlns:xsl='http://www.w3.org/1999/XSL/Transform'>"
            + "<xsl:template match='/all'><out><xsl:for-each select='item[@n &gt; 3]'>"
            + "<xsl:sort select='@name' order='descending'/>"
            + "<xsl:choose><xsl:when test='position() mod 2 = 0'><even><xsl:value-of"
            + " select='concat(@name, \"-\", string-length(.))'/></even></xsl:when>"
            + "<xsl:otherwise><odd><xsl:apply-templates/></odd></xsl:otherwise></xsl:choose>"
            + "</xsl:for-each></out></xsl:template>"
            + "<xsl:template match='b'><bold><xsl:value-of select='.'/></bold></xsl:template>"
            + "</xsl:stylesheet>";

    private static long sum;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            int rounds = Integer.parseInt(line.substring("go ".length()));
            for (int round = 0; round < rounds; round++) {
                String xml = document(20 + round % 30);
                parse(xml);
                transform(xml);
                words(xml, round);
                times(round);
                zip(xml);
                threads(round);
            }
            System.out.println("done " + sum);
        }
    }

    private static String document(int items) {
        StringBuilder xml = new StringBuilder("<?xml version='1.0'?><!DOCTYPE all [<!ENTITY e 'text'>]><all>");
        for (int i = 0; i < items; i++) {
            xml.append(String.format(Locale.ROOT, "<item n='%d' name='item%05d'>&e; <b>%x</b> <![CDATA[<%s>]]></item>",
                    i, i * 7919 % 100_000, i, "x".repeat(i % 11)));
        }
        return xml.append("</all>").toString();
    }

    private static void parse(String xml) throws Exception {
        Document document = DocumentBuilderFactory.newInstance().newDocumentBuilder()
                .parse(new InputSource(new StringReader(xml)));
        sum += Integer.parseInt(XPathFactory.newInstance().newXPath()
                .evaluate("count(//item[b and @n < 10])", document));
        SAXParserFactory.newInstance().newSAXParser()
                .parse(new ByteArrayInputStream(xml.getBytes(StandardCharsets.UTF_8)), new DefaultHandler() {
                    @Override
                    public void startElement(String uri, String name, String qualified, Attributes attributes) {
                        sum += qualified.length() + attributes.getLength();
                    }
                });
        XMLStreamReader reader = XMLInputFactory.newInstance().createXMLStreamReader(new StringReader(xml));
        while (reader.hasNext()) {
            sum += reader.next();
        }
    }

    private static void transform(String xml) throws Exception {
        StringWriter out = new StringWriter();
        TransformerFactory.newInstance().newTransformer(new StreamSource(new StringReader(SHEET)))
                .transform(new StreamSource(new StringReader(xml)), new StreamResult(out));
        sum += out.toString().length();
    }

    private static void words(String xml, int round) {
        Map<String, Long> counts = Pattern.compile("[^a-z]+(?:<|>)?").splitAsStream(xml)
                .filter(word -> word.length() > 1)
                .collect(Collectors.groupingBy(word -> word, TreeMap::new, Collectors.counting()));
        sum += counts.values().stream().mapToLong(Long::longValue).sum();
        int[] numbers = IntStream.range(0, 100).map(i -> i * 31 % (round + 7)).sorted().toArray();
        sum += Arrays.binarySearch(numbers, 5);
        List<String> names = counts.keySet().stream().sorted((a, b) -> b.compareTo(a)).collect(Collectors.toList());
        sum += String.join(",", names).hashCode() % 10;
    }

    private static void times(int round) {
        LocalDate date = LocalDate.of(2020, 1, 31).plusMonths(round);
        sum += ChronoUnit.DAYS.between(date, LocalDate.of(2030, 6, 15));
        String text = ZonedDateTime.of(date.atStartOfDay(), java.time.ZoneId.of("Europe/Berlin"))
                .format(DateTimeFormatter.ISO_OFFSET_DATE_TIME);
        sum += ZonedDateTime.parse(text).getDayOfWeek().ordinal();
    }

    private static void zip(String xml) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (GZIPOutputStream out = new GZIPOutputStream(bytes)) {
            out.write(xml.getBytes(StandardCharsets.UTF_16));
        }
        try (GZIPInputStream in = new GZIPInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
            sum += in.readAllBytes().length;
        }
    }

    private static void threads(int round) throws Exception {
        ConcurrentSkipListMap<Integer, String> map = new ConcurrentSkipListMap<>();
        CompletableFuture<Void> first = CompletableFuture.runAsync(() -> map.put(round, "a"));
        sum += first.thenApply(nothing -> map.size()).thenCombine(
                CompletableFuture.supplyAsync(() -> round), Integer::sum).get();
    }
}
