"""Weights of words by how rare they are: finding `the` in a text says nothing, finding a name says much.

A word's level is the whole part of -ln of its share of all words. Words that are not listed are rare. The shares were
counted, with the words of `folding`, in C4, WikiText-2, OpenAssistant, Dolly and books of Project
Gutenberg (English, each source with equal weight), and in the sentences of lingua's test data for 75 languages. Of the
latter, words with at least 8 occurrences are listed, each with its share in the language in which it is most common.

The list is part of the code, because every use of the rule must weigh a word in the same way, whatever corpus it scans.
Its words are folded when they are read, because more letters look alike today than when they were counted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from training.data.exams.search.folding import folded_word

_COMMON: Final = {
    2: """
a ang de die go ha ho i ku la ng sa te the ya yn น ร า
""",
    3: """
agus an and ar at att av ay az að b ba bo ce da dan der des dhe di e een eka el en er es est et eta for hb he het hi
il in ir is iyo ja je ka kai kaj ki kuti kwa le les me mga mu n na ne nga ni nie o och of og on oo ot oд que re se si
som ti til to tou u un und v va van ve və w wa y yang z дa и է של از به در سے في من میں و کی کے ہے की के में है ও করে
ਦੀ ਦੇ ਨੂੰ ਹੈ અને છે ก ค ง ด ท บ ม ย ล ว ส อ ั ิ ี เ ่ ้ და い が し す た て で と な に の は ま る を 的
""",
    4: """
abaana ac ad af ag ah aj akan ako al amb ana ari as asi ati atu auf awo awon ayaa aπo ban bat be bi bir bu c ca cac
care che cho ci co com con cu cua cum cy dans dari das dat dei del della den dengan det din dit do door download du
ede ee egy ei ein eit eivai ek ekki els em eshte estas este estis ett etta fa fra fur futhi fyrir ga gan gore h han
har hei hij hogy hore hulle ikke ildə ile ilə im ini isang ist it ito itu izan jeg jest k kad kak kako kan kana katika
ke kei kia ko kodwa kui kuwa lagu las los mae mahi mai mar marino med meg meh met með mi mit mme mo ms mwaka my nao
ndzi nei nem nhung ninu nje no non noong nti nu nր nւ od oe oh oi oleh om ons op orang orile os othv oto pa pada par
para pe pentru per por pour qe ra ri rэж s san see sem sich sie so soo su sunt swa swi ta tas tele that thv tidak till
toba trong tsa tse tudi tωv ukuba ukuthi um una une untuk uu uye uz vai var vir við von voor waa was wat waxaa waxay
with wo won word xa yi yia you yr yra za ze zen zijn ziren zu zuen það đe đo đong đuoc δev θa πou дo жәhe л пo ч чto
шto щe щo эhэ юm я են եւ את הוא על آن أن إلى اس است اور این ایک با بھی را سال على نے پر کا که کو کہ ہیں یہ आणि आहे इस
एक और का कि को तो था नहीं ने पर भी या व से ही हैं এবং করতে করা জন্য তাদের থেকে না যে হবে ਅਤੇ ਇਸ ਕਿ ਚ ਤੇ ਤੋਂ ਦਾ ਨਹੀਂ
ਨਾਲ ਨੇ ਲਈ ਵਿੱਚ ਵੀ ਸੀ ਹਨ આ એક કે மற்றும் ఈ ఒక మరియు ข จ ช ต ป พ ศ ห ะ ื ุ ู แ ์ ํา იyო წელს წლის う か き く こ さ っ
も ら り れ ん 一 不 了 人 在 我 是 有 있다
""",
    5: """
aad aan aare ab aba ababaka abadde abakazi abakyala abalala abantu aber ach achiti ada adalah added afrika aga agba
ahaa ahaan ai akadaro akati ake aku alakoso album ale alebo ali all alla als am ama amerika aml anche anda ander andre
ane anh animalia ankau ann anno ano anoti ao apie appellantur ara are artean ata atau ate au auch aus aut autem auto
ava avec aλλa aд aдamды aлe aқ baada badan bahwa baie baile bakeng bao barcelona batho batu bce bei bere bet beлbmi
bhi bhliain bih bij bilang bio biztanleak biztanleria biд ble blev blir bona bone borwa buli but buvo bwe by bya byl
byt bэ cabo cael cahы can cao cap cau cette cha chete chi chinh chu chun chung circa cok como cong cox csak cung cи d
daar dadka daha dal dalam dalka dapat dass delle dels dem demografia denne deri dette deur deze dies diposting dira
ditu dla dos duke dung dute dz dzonga də ea ecли edhe edir educacin eerst ef efter eg egin eh eine einem einen einer
eius eller empa emva ena enw eo epocha era erat ere ero erroldatutako eru esperanto esse esta etahi etiam etre etsa
etter eu eva ex exei ez ezi eða faoi fein fel fela fi finns fod fost fran from fuit fun gaan gagwe gba generoko gi gia
giao gli godine gratis gyda gyfer haar hadi hae haere hafa hai hang hanh hann has hata havas have heeft hefur hefyd
her hien hierdie hii hina hindi his hivyo hoa hoc hoi hoki hon hop hvor hwմwր hwյwuswնի hy hи hэr hեs ia iad ibang ich
icin idadi idi if igba ii ikkje ili ilk ils ilu ina incolae indonesia inte inter iri ise isebe ishte isə ix iyi iz
izvi jak jako jalo jam jane jau joka jou jsem jsou ju juga juz jwa jy kahle kaip kakhulu kala kale kama kanyang kanye
kao kapa karena kas kato kaлi kemudian kes kete khabinete khi khona khong kiel kimi kiu km koj koja koje koji kojи
koloni komentar kona korero kot koд koи koиto ktere ktory kua kuba kuita kun kunye kusho kutoka kwanza kwaye kwenye
kwi ky kъm l laga lahko lai laika lakini lam lapho lati lava lebih leh leis lembe leri leswaku leswi leyi li lietuvos
lladin lo lokhu loko loo lugha luong lwa m ma maa maak maar maen maer magaalada mais maka makore man mange maori
marhиtyдa mari markii mas mat matou may mea men menjadi mereka mes metu mewn mhe mia miaka mid minh mint mis mji moet
mohroл moi moja mot movebatur mua mudzimai muito mukadzi mula murume mutta muy mwana myos mы naa naam naar nach
naijiria nako nakon nam nang nar nav nay ndiri nebo nekuti nel nella nen ngoba nguoi nha nhan nhat nhieu nhu nicht
niet nii ning nito njengoba nkarhi nna noa noi noma nos not noticias nous ntse nua nui nuk nuo nur nչ oba ocы oder
oedd ogsa ohun ohи ohың okanye ol olan olarak olaraq ole oli oma omo ond one oni onun ook oor ophaлacқah or oth oti ou
our ovat over oл oлoh pamoja pang pas pec perthyn phai pham pia pie piu pli plus po pole poliisi post pre prej pri
prin pro pun qua quae quan qui quod raibh ratau ratou relacionadas reo rimini rin ro roedd roku rona roto roдиha rua
rи rэcэh rэta saab sal sau savo saya sebagai sed seda sef seg seka seo sezvo sg shume sida sig siis sin sind sinh siya
skal smo solem sono sonra sont soos ssente stato sto sua sudah suite sul sungula sur swo sy tabi tad tahay tahun tai
taip tak taka tako talet tana tangata tau telah tem tenei teng terbaru tetahi tetapi th thanh thata theo thi this thoi
thong thu thuc thuong tij tik tikai tinh tiu tla toa toan toi toj tona tonu tot tov toи toлbki toлbko tren truong tu
tun tylko tym tэp tұpғыhдapыhың ucun udalerrian ugu uit uma unang ut uthe uyo uyu vagy vakadaro vamwe vana vanhu vao
vari vart ved veel vera verið vert vi viec vien viet vil voi voib volt vona være wahi wakati wake war watu wax waxa we
wedi wees werd werden were whai which wie will wir wird worden wu wuxuu wյu wյդ wյն wվելի xi xyh yahay yake yce ye
yena yii ym yo yona your yw yy yлc zaidi zituen zuten þa þar þegar þeim þeir þvi đa đai đang đau đay đen đinh đoi ən
дe дeka дereh для дээp жылы иma иoro иx или пa пpa пpo цe чe эto яk яkiя яro є құpaиды եu եմ ենf էլ էր թե ի ին իր
մwuին մեր մի շws չի או ב גם היה הם זה ידי כי כל לא לאחר עם آپ أو التي الحلقة الذي الله ان او اون اپنے بات بر برای بعض
بود تاریخ تو تھا تھی تھے جب جس جو خود دارد ذلك شد شده عن قرار كما لا لیکن ما مباشرة مسلسل مشاهدة مع می میشود نام نہ
نہیں نیز هذا هذه وقت وہ يوتيوب کر کرد کرنے کیا ہی یک अपने असे आप आहेत कर करने कहा काही किया कुछ गया जो तक तर ते त्या
थी थे दिया नाही पण पहले मी यह यांनी लिए वह साथ हा हुए हे हो होते আপনার আপনি আমরা আমাদের আর এ এই এক একটা একটি এর করার
করেন কি কিছু কোন তা তারা থাকে পারে বা বিভিন্ন শিক্ষা শেষ সঙ্গে হচ্ছে হয় হয়েছে ਆਪਣੇ ਇਕ ਇਹ ਇੱਕ ਉਨ੍ਹਾਂ ਉਸ ਉਹ ਕਰ ਕਰਨ
ਕੀਤਾ ਕੀਤੀ ਕੇ ਗਿਆ ਤਾਂ ਦਿੱਤਾ ਦੀਆਂ ਪਰ ਪਹਿਲਾਂ ਰਿਹਾ ਲੋਕ ਲੋਕਾਂ ਵਾਲੇ ਵਿਚ ਸਿੰਘ ਹੀ ਹੋ આવે આવેલા આવેલું એ કરી કરે કારણે ગામ
ગુજરાત જ જિલ્લાના જે જ્યારે તાલુકામાં તે તેમણે થાય દિવસ દેશના દ્વારા પણ પર પશ્ચિમ ભાગમાં ભારત માટે રાજ્યના સાથે હતા
હતી હતો હોય அல்லது ஆகும் ஆம் இது இந்த உள்ள என்பது என்ற என்று ஒரு பல முதல் అని ఆ ఆమె ఇది ఉంది ఉన్న కూడా చెందిన తన నుంచి
నుండి యొక్క లేదా లో ญ ณ ถ ธ ผ ภ ษ ึ โ ใ ไ ็ ამ არ ასევე დროს ერთ ერთი ეს იგი ის კი მისი როგორც რომ რომელიც შემდეგ あ
え お け せ そ だ ち つ ど ば め や よ わ イ ス ッ ト ラ レ ン 上 下 与 业 个 中 为 之 也 于 他 以 们 会 你 出 到 发
可 后 和 国 地 大 好 学 家 对 就 年 心 成 方 日 时 最 来 法 然 现 生 用 而 能 自 行 要 说 过 还 这 那 都 것으로 고 등
수 이 있는 한
""",
    6: """
about after aha air ak also alt any appropriately band bang bank bas bay been before begin below ben browser bus
canada canadian car cd centre chat close come comments completes connection content could ct dad date day describes
did don due each ed end eno face fail far fe first following france full god gone gram gran gun had hat health here
him how information instruction into its itt japan jesus ji jo john just kane lag lake lap latest length life like
long mac made make manga many march mate million min more most mundo municipal nest net new news num oct off once
online only other out p pan papa part pat people pet pm posting pot principal program project quo r rat read request
response review said same sang sara sense service services she solo some son song students such t take tan tang task
teen tempo ten than their them then there these they tie time todos token tom ton tuy two under up update us use using
verde very via want web well what when who work world would write year years
""",
    7: """
africa again against along always american another area around back based became because being best better between
black both called case chan cheese city code community company context data days different does dog dont down during
even every example f few film find formation found fund further game get give good great group hand hans having help
high himself home house however important including increase input international jack june khan know known land
language large last later left light line list little love member might model mon mr much must name nasa need never
next night north now number often old ontario open order own paired place please politics portugal possible power
pradesh process provide provides research right sat say second set several should side since site small south state
states still support sure system team technology tell think those though three through tim too took top training
united until upon used vat way website where while why wiki without x
""",
    8: """
ability able above access according across act action actions activity actually add addition additional age agent
allow almost alone already although america among amount answer answered anything appearance approach approximately
april areas army art ask asked attack attention august australia australian available average avoid away ball base
basic battle become began behind believe big bit blue board body book born bring british brought build building built
business call came cannot cant career cause center central century certain change character characters check child
children chinese choice choose church class clear coffee college comes coming command common companies complex
computer consider considered contact continued control copy cost countries country county course court create created
cross current customer customers cut daily dark dead dear death december decision decrease deep depending described
design designed despite developed development died difficult direction director distribution district doing done drive
early earth east eastern easy effect eight either electric energy english enough environment episode especially essay
europe event events ever everything examples experience eyes fact fall family faster father features february federal
feel feet field final finally fine finland fire five floor focus follow followed food football force forces form
former four frank free french friday friend friends front function future g games gave general generally german
germany getting girl given going got government green ground half hands hard head hear heard heart heat heavy held
higher highway hill history hit hold hope hot hour hours human idea ideas ill impact improve include included
increased independence individual inside install instead interest island itself ive january japanese job jonathan july
keep key killed kind king knowledge languages late law lead leading league learn learning least led less let letter
level library likely live local located look looking lost lot low lower machine main major makes making market master
match matter mcdonalds mean means media members meridian method michigan military milk mind minutes models modern
moment money months morning mother mountains movie mrs multiple music named national natural nature near needs network
northern note nothing november numbers observed october offer offers office opened opening operations original others
outside overall page parts party past patients perfect performance period person personal pink placed plan platform
play played player players playing point points policy political poor popular population position positive potential
practice present president press problem problems produced product production products programs property provided
public put quality question questions quickly quite race railway range rather reach real really reason received red
release released remember required rest result results return returned river road rock role room round route rowland
run running runs russian save saw school season security seemed seems seen selection self september series serve
served server seven shall short show significant similar simple single sir six size social something sometimes soon
sound source southern space special specific speed sports stage standing star start started stay step stop story
street strong style success successful sun systems table taken takes taking tasks temperature term terms test text
thames thats theatre themselves therefore thing things third thought throughout thus times today together told tools
total tour tourist towards trail train trained troops true try turn turned type typically understand university user
uses usually valley value various version video view visit voice wall water ways week went west western whether white
whole whom whose wide wild win window within woman women wood words working works writing written yes yet york youll
young youre yourself
""",
    9: """
abilities academic accepted accessible account accounts accurate achieve achieved acid acting active activities actual
adding additionally address administration adopted advance advanced advantage advertising advice affect affected
afraid african afterwards agency agents ago agreed agreement ahead aid aircraft airline airlines airport alaska albums
alcohol alive allied allowed allowing allows alongside alternative amazing analysis ancient angle animal animals anime
announced annual annually answers anti anyone apollo app appear appeared appears apple application applications
applied apply appointment appropriate apps architecture arm arms arrive arrived article artillery artist arts asia
assessment assigned assist assistance assistant associated association atmospheric attached attacked attacks attempt
attempts attended attorney attract audience audio australians author authorities authority award awarded aware baby
background backpack bacteria bad bar bars baseball baseline basis basketball battalion beans bears beautiful beauty
becomes becoming bed beginning behavior believed benefit benefits beyond bill billion bird birth birthday block blocks
blood boards boat bond books border bottom bought bound bowl box boy boys brain brand bread break breaking bridge
brief brigade bright bringing britain broken brother brown brussels butter buy buying cable california calling calls
camera cameras camp campaign campus candidate cannabis capable capital captain capture captured card carefully
carolina carpenter carried carry cases cash cast casualties cat cate catherine caught caused causes causing celebrated
cell cells centers certainly ceylon chain chair challenge championship chance changed changes changing channel chapter
charge charged charles chief chili china chocolate chosen christian christmas circumstances cities citizen civil claim
claims classic classified clean cleaning click climate clinical clock closed closely cloud club coast coat cold
collection color colorado colors combination combined comfortable commercial committed commonly companys compared
competition compiled complete completed completely components computers computing concept concerning concerns concert
conclusion conditions conduct conducted conflict connect connected consequences considering consistency consistent
consists conspiracy construction consumption contain container contains continue continues contributed controlled
conversation convert cook cooking cool core corner corporation costs council counter couple cover covered creating
creation creative creek crew critical critics croatian crossing crowd cry crystal cultural culture cultures currently
dakota damage dance dangerous dates daughter david deal debut decades decided declaration declared dedicated defeat
defeated defence defense defined definitely definition degree degrees demanded democratic department depends derived
description desert desire desired destination destinations detailed details determine determined develop developing
device devices devon didnt diet difference differences digital dinner direct directed directly directory disappearance
discover discovered disease dish display distance distinguished distributed division documentary documents doesnt dogs
domain dose double doubt downtown dr drawing drawn drew drink driven driving drop drug dry duration earlier earliest
earned earths easier easily eat eaten economic edge edition education educational effective effects efficiency
efficient effort efforts egypt election electrical electricity electronic electrons elements elevation else email
emotions empire employees ended ending ends enemy engine england enjoy enjoyed ensure enter entered entire entirely
entrance entry equal equipment errors escape essential establish established estate estimated etc european evening
eventually everyone evidence exact exactly excellent except exchange execution exercise existing expected expensive
experienced experiences experiment expert explain explained explore exposure express expressed expression extended
extra extract extremely eye faced facilities factors facts failed fair falls fame familiar famous fan fans farm
fashion fast fathers favorite fear feature featured feedback feeling feelings fees fell fellow felt female festival
fields fight fighting figure file files filled films financial finding finds finish finished firm fish fit fitted
fixed flag flat flavor fleet flew flight flow fly focused follows foot forced foreign forest forever forget format
formed forms fort forth forward fought foundation founded fourth fox frame framework francis freedom frequently fresh
friendly fruit ft fuel fully gain gained galaxy garden gas generate generated generation george gets gift gives giving
glad glass global goal goals goes gold golden google governor gpt grand gray greater greatest greatly grew groups grow
growing grown growth guide guitar guns habit hair hall happened happy hardware harry hawaii headquarters healthy
hearts heating hell helped helpful helps hemisphere heres herself hes hidden highest highly hiking historic holding
hole holes holiday holy honor horse host hotel houses html https huge humans hundred hundreds hurt husband id
identified identify identity image images immediately imperial importance impossible inches incident includes
increases indeed independent india indian individuals indoor industry infantry influence ingredients initial initially
instance instant instantly instructions insurance intelligence intended interested interesting interests internet
interpreted interview introduced introduction invasion investigation investment involved involves iowa iphone irish
iron isnt israel issue issues italian italy item items j jackson james java jersey join joined journey judge junction
justice keeping kentucky kept kids kill kingdom kings kitchen knew knight knows lack lady laid lakes lane laptop
larger largest latter laugh launched laws lay layer leader leads learned leave leaves leaving legal lets letters
levels libraries license lie lies lifetime lights limit limited lines link listed listen lists literary lived lives
living load loan location lock london longer looked looks lord lose loss lots loved lyrics madonna mainly maintain
majority male management manager manner manual manufacturer map marine mark marked marketing marks marriage married
marry massive matches material max maximum maybe meaning meant meanwhile measured meat mechanical medical medium meet
meeting memory mention mentioned mercury message metal methods mexico mg michael middle mild mile miles mill mine
minister minute miss mission mississippi missouri mixture mm mobile month moon moral mostly motion mould mountain
mouth move moved movement movements movies moving multi murder muscle musical myself names nations native nato navy
nearly necessary needed negative neither networks neural nice nine noise none nor normal noted notes notice novel
nuclear numerous object objects obtain occupied occurred occurs offensive offered offering officer officers official
officials oil ones onto operated operating operation opinion opportunity opposite opposition option options orange
ordered orders oregon org organization organizations organized originally outback outdoor output owner pacific pagan
pages paid pain paper papers paragraph parameter parameters parents paris park parliament particles particular
particularly pass passage passed passengers passes passing pasta path patient paul pay pc peace percent perfectly
perform performances performed perhaps personnel persons phase phone photo photography photos physical pick picture
piece pieces places plain planet planning plans platforms plot pocket poem police popularity populations port
positions possibly posted potentially potter powerful predictions prefer prepare presence presented presidential
pressure pretty prevent previous previously price primarily primary prime prince print prior prison prisoner private
probably processes processing produce professional programming progress projects promote prompt prompting proof
properties proposed protect protection providing province published purchase purpose push putting quantum quick radio
railroad rain raise raised ram ran random rank ranked rapidly rate raw reached reaching reaction reactions reading
ready reality rear reasons receive receiving recent recently recommend recommended record recorded recording records
reduce reduced refer reference referred refers regarded regarding regiment region regions regular related relationship
relationships relatively religion religious remain remained remaining remains remote remove removed repeated replace
replaced report reported reports republic republican require requirements requires resistance resort resources respect
respond responses responsibility resulting retirement returns revenue reviews reward rich richard ridge rights ring
rise risk robert roof rooms rose royal rugby rule rules russia safe safety sails saint sale salmon salt sample
sandwich santa satisfaction saturday sauce saving saying says scale scene scenes schedule scheduled science scored
scott screen script sea search seat seated secret section sections secure seeing seek seem segment selected selling
senate send sent sentence sentiment separate serious serving sets setting sexual shape share sharp shell ship shipping
ships shop shortly shot showed showing shown shows sides sight sign signal signed significantly silence simply sing
sites situation sixth skill skills skin sky sleep slight slightly slow slowly smaller smile smith snow soccer society
soft software sold soldiers solid solution solutions solve someone songs sonic sons sorry sort soul sounds sources
spaghetti spain span spanish speak speaking species speech spent spirit spoke spores sport spot spread spring square
st staff stand standard stands starred stars starting starts stated statement station stations status steel steps
stone stood storage store stores stories storm strange strategy stream streaming streets strength stress string struck
structure studies studio study subject subjects subsequently suddenly suffered suggest suitable summer sunday sunrise
super superior supplies supply supported supports suppose surface surprise surrounding survey sweden sweet talk
talking target taste tax taylor tea teams technical techniques television temple tennis territory testing tests thank
thanks theater theory therapy theres theyre thick thinking thomas thoughts thousand threat tips title toilet tone tool
topics touch tourism toward town track trade traditional traffic trails transcription transfer transferred
transportation travel treated treatment tree trees trial trials tried trip tropical trouble truly trust truth trying
tuning turkey turner turning turns tv twenty twice types uk ukraine ultimately unable understanding union unique unit
units universe unknown unless upload upper useful users valuable values variable varies variety vary vice victory
videos views village violence virgin visible visual vocals voted wait waiting wales walk walking walls wanted wants
ward warm wars washington watch watching waters weapon weapons wear weather weeks weight weights welcome weve whatever
whats wheel whereas widely wife william wind windows wing winning winter wish wonder wont worked worlds worldwide
worse worth wouldnt wounded wright writer wrong wrote www yards yellow yesterday youd yours youve zealand zero
""",
    10: """
abandoned abraham abroad absence absent absolutely academy accept acceptance accession accident accommodation
accompanied accompanying accomplish accordingly accounting accuracy accurately accusations accused achievements
achieving acquire acres acted actor actors acts adam adapt adapted addressed adds adjusted adjustment administered
administrative admiral admission admitted adoption adult adults advancing advantages adventure adverse adversity
advised affair affairs affection afford affordable afghanistan aftermath afternoon aged agencies ages aggressive agree
aim aimed aims aired alabama alan alberta alex alien aligned alignment alike alleged alliance allies altar alter
altered alternate alternating alternatively altogether aluminum alumni amazon amendment americans americas amid
amongst amounts analytics anatomy anderson andrew android angel angeles anger angles anglican angry anne anniversary
answering anticipated anyway anywhere apart apartment api apparent apparently appeal appealing appeals appearances
apples applicable applying appointed appreciate approached approaches approaching approval approved approximate arab
arabic arch architect archive arent argentina argue argument arizona armed armour arnold arranged arrangement arrest
arrested arrival arrives arthur articles artificial artists asian aside asking aspect aspects assassination assault
assembly assessments assets assignment associate assume assumed assumes assuming assumptions assured astronomical
atlantic attempted attempting attend attending attitude attracted attractive attributed audiences authors
automatically automation avenue avoiding awards awareness awesome babies backed backup bacterial bag bags bailey
balance balanced balls bands banking banks baptist barbara barriers bases bass batch bath bathroom battleships bbc
beach beam bear bearing beast beat beating beautifully bedroom beds begins begun behaviour beings belgium belief
beliefs believes believing bell beloved belt beneath berlin beside besides betting bible bid biggest billions billy
biological birds blame blanket blind blockchain blocked blocking blog blow blu boats bob bodies boilers bold bones
bono bonus boost bore borneo boss bottle boulder bout bowling boxing branch branches brazil breakfast breath breeding
brick bridges briefly brightening brilliant brings broad broadcast broadway broccoli broke brothers brow budget
buildings bunk buried burke burn burned burning burst burton bush businesses busy butterfly button cabin cables cafe
cage cake calcium calculated calculation calendar calm campaigns canal canberra candidates capabilities capacity cape
capturing carbon cardinals cards careful cargo carries carrying cars cart carved casting catch categories category
catholic cation caution cecil celebrate celestial celsius centuries ceo ceremony certified ch chairman challenges
challenging chamber champions channels chaos chapel characteristic characteristics charges charleston charlie charm
charming chart charts chase checks chemical chicago chicken childhood childrens childs choosing chose chris churches
cinema cinematic cinnamon circle circuit cited citizens citys civilian civilians claimed claiming classes classical
clearance clearly clever client clients clinton closer closest closet closing clothes clothing cm coach coal coalition
coastal cognitive collaboration collect collected collins colonel colonial colonies colorful colour columbia column
combat combine combines comfort commanded commander commented commission commit commitment committee commonwealth
communicate communication communications communities companion compare comparing comparison competitive competitor
compilation complaint completion compliance complicated component composed composition compositions compounds
comprehensive computation concentrated concentration concern concerned concerts concluded concrete condemned condition
conducting conductor conference confidence confident confirmed conflicts confusion congo congress connections
connectors consent consequence conservative considerable considerably consideration consist consisted consistently
consisting conspirators constant constantly constellation constitution constructed consumer consumers contained
containing contemporary contents contest continental contingency continuing continuous continuously contract contracts
contrary contrast contribute contribution contributions controlling controls controversial controversy convection
convenience convenient convention conventional conversion converted convinced convincing convoy cooke cooler cooling
copies copyright corn corporate corporations corps corpus correct correctly corresponding costume cotton couldnt
counsel count counties courage courses courts coverage covering covers cow cr craft crash cream creates creators
creatures credit crib crime crimes criminal crisis crisp criticism criticized crossed crosses crowded crown crucial
cultivation cup curiosity currents custody custom customary cuts cutting cycle czech dale damaged damages dancing
danger daniel dare darkness darwin dash database daughters dave dawn daylight dc deadly dealing deals deaths debate
debt decade deception decide decisions deck decline declined decreased deemed deeper deeply default defended defenders
defending defenses defensive define delaware delay delayed deliberate delicious delight deliver delivered delivering
delivery demand demands democrats demonstrate demonstrated denied dense density denver departed departments departure
dependent deployed deployment depression depth descent describe describing deserve designated designation designer
designs desktop desperate destroy destroyed destroyers destruction detail detect detected determining developers
devoted dialogue diameter diane diary difficulty dimension dimensional directions directors dirt dirty disappear
disappeared disaster disc discharge discontinued discourse discovers discovery discrimination discuss discussed
discussion diseases dishes disk disney displayed dispute distant distinct distinction distinguish districts disturbed
divided divine divisions dna doctor doctors doctrine document dollar dollars domestic dominated donations doors
doorway draft drain drama dramatic drastically draw dream dress dressed dried drinking drinks driver drivers drives
dropped drove drugs drum drums dust dutch duties duty dvd dying dynamic dynasty eagle eagles ear earn earthquake ease
easter eastward eating echoed economy ecosystem edible edit editing edward effectively effectiveness efficiently eggs
eighth elaborate elderly elected elections elegant element elephant elsewhere emerged emergency emerging emirates
emotion emperor employed employee employer employers employment empty enable enabled enabling encounter encountered
encourage encouraging endless enemies enforcement engage engaged engagement engaging engineer engineering engineers
engines enhance enlightenment enormous enrolled enrollment entering enterprise enterprises enters entertained
entertainment enthusiasm enthusiasts entitled entity environmental episodes equally equation equipped equivalent
erected error escaped essays establishing establishment estates estimate estimates ethics evaluate evaluation
everywhere evil evolution exaggerated excellence exception excited exciting excluding exclusive exclusively excuse
execute executed executive exist existence exit expand expanded expect expenses expertise experts exploration exposed
extension extensive extensively extent external extraordinary extreme fabric facebook faces facility facing factor
factory fahrenheit failure fairly faith fake falcon fallen falling false families fancy fantastic fantasy farmers
fascinating fat fault favor favour favourite fbi fcc fears feathers featuring fed federation fee feels females
fermentation fewer fiction fifth fifty fighters figures filed fill filmed filming filter finance findings finishing
fired firms fishing fitness fix flash flavour fled flesh flexible flights flip flood florida flower flowers flows
flying focusing foil folk folks followers foods footage forcing forgotten formal formally formats formerly forming
formula formulated forte fortune forty foster foundations franchise fraud frequency fringe frozen functions
fundamental funding funds fungi funny furthermore fusion gaining gallery gallipoli gameplay gaming gardens garlic
garrison gary gate gather gathered gathering generates generations genesis genre gentle gently georgia gesture giant
girls giveaway glenn globe glory goat gods golf goods gordon governments gown gps grace grade gradually grant granted
graphics grasp graves grazing greece greek grounded grows guaranteed guard guess guest guests guided guidelines guilty
guitarist gulf guy habitat hadnt halt hammer handed handle handsome hanging happen happening happens happiness harbor
harder hardest harm harmful harrison hart harvest hats havent headed heading headquartered heads healthcare hearing
hearst heavily hebrew height hello helping hence henderson henry heritage hero heroes hey hiatus highlights hike
hikers hills hiring historical hitting holds holidays hollywood homes honest honorable honour hoops hoped hopes hoping
horizon horror horses hospital hostile hosting household howard hr http hub humanity humor hurricane hybrid ian ice
ideal identifying iii illegal illinois illness imagination imagine imagined immediate immense immigration
implementation implemented import impressed impression impressive improved improvement improving inaccurate inc inch
inclusive income incorporated incorrect increasing increasingly incredible incredibly incumbent index indiana indians
indicate indigenous induced inducted industrial industries infection infinite inflation influenced influential
informed infrastructure inhabitants inherent injection injured injuries injury inner innocent innovative inquiries
insight inspiration inspired installation installed institute instrument instruments intake integrated integration
intellectual intelligent intense intensity intent intention intentionally interact interaction interactions
interchange interference interior intermediate internal internally interpretation interrupted intersection intolerance
invest invited involve involvement involving ios iraq ireland irving islands israeli issued itunes iv jail jake jason
jay jean jewish jim jobs joe johnson joining joint joke jokes jones jordan joshua journals joy jr judges juice jungle
jury kansas keen keeps kevin keyboard kg kick kid kidney killing kills kilometers kilometres kindergarten kinds kiss
kit knights knowing kong korea korean label labels labor labour ladies lamp landed landing lands landscape lanes
lantern laps largely lasted lasting latin latitude launch lawyer lawyers layers laying lazy leaders leadership leagues
learns leather lebanon lecture lee leg legacy legislature legitimate legs lessons lewis licensed lieutenant lifestyle
lift lifting lightly lightning liked likes likewise lime limiting limits lincoln linear linked links liquid listening
listing literature llm loading locate locations locked log logical login lola loop loose losing losses loud louis
louisiana lovely lover lovers loves loving lowest loyal ltd luck lunch luxury lying machines mad magazine magic
magnitude mail mainland mainstream maintained maintaining maintenance maker malaysia males manage managed managers
manchester mans manually manufacturers manufacturing margin maria marines mario maritime markets marshall martin
maryland mask mass matching materials math matrix matt matters matthews mayor mays meal meanings measure measures
mechanics mechanism mechanisms median meditation mediterranean meetings meets melbourne melody membership memorial
memories mens mental merely messages metres metrics mgm microsoft midnight mike millions mills minds minerals mini
minimum mining minnesota minor mirror missed missing mistake mix mixed ml mode moderate modes modified module moments
momentum monday monitor monster monthly monument monuments mood moore moreover morocco mothers motivated motivation
motor mount mounted mouse movable moves mozambique mud murdered museum mushroom mushrooms mysterious mystery namely
narrow nation nationalist naturally natures navigation nazi nba nearby nearest neck neighborhood nelson nerve nervous
neutrality nevada nevertheless newly newspaper nick nights nixon noble nobody noon normally northeast northwest norway
nose notable notably notch noticed noting nova numbered oak objective objectives observation observe observers
observing obstacles obtained obvious occasion occasionally occupation occur ocean odds offerings offices officially
ohio ok okay oklahoma older oldest olive ongoing onion onions opens opera operate operational opinions opponents
opportunities opposed optimal optimization optimize optimized optional orbit ordinary organic origin originated
originating otherwise ought ourselves outcome outlet outline overcome overnight overseas overview owen owned owners
ownership oxford oxygen pace pack package packaging packed paint painting paintings pair pairs palace pale palestine
panel paragraphs parallel parent parker parks participants participate participated parties partner partners
partnership passion passionate passport password paste patience patrick pattern paused paying payment payments pdf
peach peak peel peninsula pennsylvania peoples perceived percentage performing perimeter periods permanent permission
permit permitted persian persistent personality personally perspective peter pets phenomenon philosophical philosophy
phones photographer photographs phrase piano picked picnic pictures pin pine pins pipe pipeline pitch pitt placing
plane planets planned plant planted plants plastic plate plated plates playground plays plaza pleasant pleased
pleasure poet poetry pointed pointing policies poll pools pop portable portfolio portion portland portrait ports
portuguese possess possession possibility posts pounds poverty powder powered powers practical practices praise
praised prayer precipitation predict prediction preferred premier premium preparation prepared preparing presentation
preserve pressed prevented prevents prices princess principles printed printing prints priority prisoners prize
procedure proceed proceeded proceedings producer produces producing professionals professor profile profit profound
programme prominent promise promised promoted promoter promoting promotion prompted pronounced proper properly
proposal prospect protected protein proteins protest protestant protested protocol proud prove proved proven provider
provinces provincial provisions psychological publication publications publicly pull pulled punishment purchased pure
purposes pursue pursued pursuing pushed puts q quantities quantity quarter queen quiet races racing rack radiation
rage rail rainfall rains raising randomly randy ranges ranging rankings rapid rar rare rarely rated rates rating
ratings ray react reader readers readings realize realized reasonable reasoning rebels recalled receiver reception
recipe recipes recognised recognition recognize recognized recommendations recovered reducing references reflect
reflection refugee refugees refund refuse refused regard regardless regional register regularly regulations reign
relate relation relations relative releasing relevant reliable relief relieved rely remainder remarkable remarked
remembered reminder removal removing renewal rent repair repairs repeat repeating replacement reply reportedly
represent representation representative representatives represented represents republicans republics reputation
requests rescue resentment reserve residential residents resolution resolved resorts resource respective respectively
responded responsible responsive restaurants restoration restore restored restricted resulted resume resumed retail
retain retained retaining retired retreat returning revealed reverse revised revival revolution revolutionary rewards
rick ride riding rings ripe rises rising risks rival roads robot robots rocks rocky rode roles roll rolling romantic
root roses roughly routes routines row ruin ruins ruled rulers ruling rum rural rush rushed rushes rushing russias
ryan sacred sad sail sailed sales samples sand sargent satisfied saudi savings scattered scenic scheme schools
scientific scientists score scores scoring scotland sculpture seal searching seasons seating seats secondary seconds
secretary sect sector secured securing seed seeds seeking sees segments seized select sell senator sending senior
senses sensitive sentenced sentences separated sequence seriously serves session sessions settle settled settlement
setup seventeen seventh severe sex shade shadow shake shallow shaped shared sharing sheep shelf shes shifted shining
shirt shock shoes shoot shooting shopping shops shore shorter shots shoulder shower showers shut signals signature
significance signs silent silver similarly simpler singapore singer singing singles sister sit sitting situated
situations sized sleeping slide slipped slot slots slower smart smell smoke smooth socialist solar soldier sole solemn
solved solving sometime somewhat sooner sophisticated sought sounding soundtrack southeast southwest soviet spacecraft
spaces spare speaker speakers specialized specifically specified spectacular spectrum spend spending spices spikes
spin spirits spite split spoken spots spreading springs stable stadium stages standards starter statements static
stating statistics steady steve stir stock stocks stones stopped stopping stops stored stove straight strain strangers
strategic strategies straw streams stretching strike striking strip stroke stronger strongest strongly structures
struggle stuart student studied stuff stunning stupid styles sub subjective submit submitted subsequent succeeded
successfully sudden suffer suffering sufficient sugar suggested suggestions suggests suit suited summary summit
summoned sunlight supervised supplied supporting supposed supreme surely surprised surrender surrounded surroundings
survive survived surviving survivors suspect suspected suspended suspicious sustained sweetheart swift swimming swing
swiss switch switzerland sword sworn sydney sympathy symptoms syria tab tackles tactics tag tail tale talent talks
tall tanks targeted targets taught tavern teach teacher teaching teamwork tears tech technique technologies teeth
telling tells temperatures temples temporary tend tender tennessee tension tensions terminal termination terminus
terrain terrible terror terry tested testified texas texts texture thailand theme themes theyve thickness thin thinks
thirteen thirteenth thirty thoroughly thousands threatened threatening threats threshold threw throne throw thrown
ticket tickets ties timing tiny tip titles todays toilets tomatoes tomb tones tongue tons topic topped torture
touchdowns tough touring tours tower township toys tracking tracks trading tradition traditions trains trans
transaction transactions transformer transition translation transport transported trap trapped traveling travelled
travelling travels treat treaty trend tribe tribes tribute tries trim trout tuesday turkish twelve twilight twin
typical ukrainian ultimate uncle underlying understood underwent unexpected unfinished unfortunately universal unlike
unlikely unnecessary unusual upcoming updated updates upset urban usa usage usual utensils utility utilized vacuum
variants variation variations vast vault vb vegetation vehicle vehicles velocity venture verse versions vertical
vessel victim victims victor victoria vietnam viewed viewers violent virginia virtual virtually viscount vision
visited visiting visitors visits vocal voices void volume volunteer volunteers vote voters votes vs waited walked
walter wanting wardrobe warfare warmth warned warning warrant wasnt waste watched watches waterfall wave weak wealth
wearing webb websites wedding weekend weekly welsh wheat wheels whenever whilst whites whos wider widespread
wilderness williams willing wilson winds wine winner wins winters wisconsin wisdom wise wishes withdraw withdrawn
withdrew witness womans wonderful wooden woods wore worker workers workplace workshop workshops worn worry worship
worst worthy wound writes yard younger youth youtube zimbabwe zone
""",
}
_LEVEL_OF_OTHERS: Final = 11
_LEVEL_OF_NUMBERS: Final = 11  # even of common ones such as 3, because another number makes another question


def weight(word: str) -> float:
    """Return the weight of a folded word, from 0.5 to 8."""
    level = _LEVEL_OF_NUMBERS if is_number(word) else _levels().get(word, _LEVEL_OF_OTHERS)
    return max(0.5, level - 3.0)


def is_number(word: str) -> bool:
    """Whether a word has a digit."""
    return any(map(str.isdigit, word))


@lru_cache(maxsize=1)
def _levels() -> dict[str, int]:
    ordered = sorted(_COMMON.items(), reverse=True)  # of two words that look alike, the common one counts
    return {folded_word(word): level for level, words in ordered for word in words.split()}
